"""A user's own records and own model: trains, and says exactly what is wrong where it is not."""

import json
from pathlib import Path

import pytest
from command import curriculum, one_error

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WORDS = [
    "amber",
    "bells",
    "carry",
    "dusty",
    "eaves",
    "grain",
    "hills",
    "jars",
    "kept",
    "low",
    "mossy",
]


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * 5 + i * (1 + number % 3)) % len(WORDS)] for i in range(6))


RECORDS = {
    "rag_qa": lambda n: {
        "question": f"Where is jar {n}?",
        "answer": f"in hall {n}",
        "passages": [f"Jar {n} is in hall {n}.", sentence(n)],
        "answerable": True,
        "note": "kept for audit",
    },
    "retrieval_university": lambda n: {
        "query": f"jar {n}",
        "positive": f"{sentence(n)} {n}",
        "negatives": [f"{sentence(n + 1)} a{n}", f"{sentence(n + 2)} b{n}"],
    },
    "instruction": lambda n: {"instruction": f"Repeat {n}", "response": f"{n} {n}"},
    "causal_foundations": lambda n: {"text": f"{sentence(n)} {n}"},
    "summarization": lambda n: {"document": f"{sentence(n)} {n}", "summary": f"jar {n}"},
    "planning": lambda n: {"request": f"carry jar {n}", "plan": f"1. lift {n}"},
}
RECORDS |= {
    "retrieval_advanced": RECORDS["retrieval_university"],
    "retrieval_school": RECORDS["retrieval_university"],
    "causal_university": RECORDS["causal_foundations"],
    "qa_mixture": RECORDS["rag_qa"],
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data/<phase>/{train,heldout}.jsonl` and `model/`: a small Llama with a BPE tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("own")
    texts = []
    for phase, make in RECORDS.items():
        folder = root / "data" / phase
        folder.mkdir(parents=True)
        for split, numbers in (("train", range(240)), ("heldout", range(500, 505))):
            lines = [json.dumps(make(n)) for n in numbers]
            (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
            texts += lines
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    # the end of a text and of a turn is one token, and there is no pad token
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|bos|>", eos_token="<|end|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(root / "model"))
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=400,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    ).save_pretrained(root / "model")
    return root


def arguments(own: Path) -> list[str]:
    return [
        *("run", "+plan=corrective", "profile=rehearsal", "tracking=none"),
        *("data.root=data", "model=hf", "model.path=model"),
        *("budget.scale.batch_size=0.03", "budget.scale.seq_len=0.04"),
        *("probes.at_phase_end=false", "probes.generation_max_tokens=8"),
        f"cache.dir={own}/cache",
    ]


def test_own_records_and_model_train(own: Path) -> None:
    result = curriculum(*arguments(own), cwd=own)
    assert result.returncode == 0, result.stderr
    assert f"final model: {own}/runs/corrective/rehearsal/final" in result.stdout
    run = own / "runs/corrective/rehearsal"
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    planned = json.loads((run / "dry_run.json").read_text())
    assert len(recorded) == planned["totals"]["steps"] == 67
    assert {row["phase"] for row in recorded} == set(RECORDS)
    assert all(row["loss"] is not None for row in recorded)
    saved = (run / "config.yaml").read_text()
    assert f"{own}/data/rag_qa/train.*" in saved  # a run means the same from anywhere
    evaluated = curriculum("eval", str(run), "output=json", cwd=Path("/"))
    assert evaluated.returncode == 0, evaluated.stderr
    values = {p["name"]: p["values"] for p in json.loads(evaluated.stdout)["probes"]}
    assert values["planning.perplexity"]["perplexity"] > 1
    assert values["retrieval_school.retrieval"]["queries"] == 5


def test_the_same_run_from_elsewhere_is_the_same_run(own: Path) -> None:
    """Paths given absolutely and relatively name one run; it is found finished from `/` too."""
    absolute = [a.replace("=data", f"={own}/data").replace("path=model", f"path={own}/model")
                for a in arguments(own)]  # fmt: skip
    absolute += [f"run.dir={own}/runs/corrective/rehearsal", f"store.dir={own}/.curriculum/store"]
    result = curriculum(*absolute, cwd=Path("/"))
    assert result.returncode == 0, result.stderr
    assert "everything is up to date" in result.stdout


def edited(own: Path, tmp_path: Path, phase: str, line: str, split: str = "train") -> list[str]:
    """Arguments of a dry run over data in which one line was put in place of the third."""
    root = tmp_path / "data"
    for folder in (own / "data").iterdir():
        (root / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (root / folder.name / file.name).write_text(file.read_text())
    path = root / phase / f"{split}.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    return [
        *("data.root=" + str(root) if a.startswith("data.root=") else a for a in arguments(own)),
        f"cache.dir={tmp_path}/cache",
        "data.chunk_records=240",  # every record is read, whatever the phase needs
        f"run.dir={tmp_path}/run",
    ]


@pytest.mark.parametrize(
    ("phase", "line", "said"),
    [
        ("rag_qa", '{"question": "Where?", "answer": 7}', ["answer", "7"]),
        ("planning", '{"request": "carry"}', ["plan"]),
        ("summarization", '{"document": "a", "summary": ', ["JSON"]),
        ("retrieval_school", '{"query": "q", "positive": ""}', ["positive"]),
        ("causal_university", '["text"]', ["object"]),
    ],
)
def test_a_bad_line_is_named(
    own: Path, tmp_path: Path, phase: str, line: str, said: list[str]
) -> None:
    result = curriculum(*edited(own, tmp_path, phase, line), cwd=own)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    (message,) = [line for line in result.stderr.splitlines() if "train.jsonl:3" in line]
    assert f"/{phase}/train.jsonl:3" in message
    assert all(word in message for word in said), message
    assert not (tmp_path / "run").exists()


def test_a_phase_that_asks_for_more_than_there_is(own: Path) -> None:
    result = curriculum(
        *arguments(own), "plan.phases.retrieval_school.steps=120000", "dry_run=data", cwd=own
    )
    assert result.returncode == 1
    assert "data/short" in result.stdout
    assert "240" in result.stdout  # what the file holds
    assert "1200" in result.stdout  # what 120000 x 0.01 steps of one window need


def _without_template(own: Path, directory: Path) -> list[str]:
    """Arguments for a copy of the model that lacks its template and whose weights are broken."""
    bare = directory / "model"
    bare.mkdir()
    for file in (own / "model").iterdir():
        if file.name != "chat_template.jinja":
            (bare / file.name).write_bytes(file.read_bytes())
    (bare / "model.safetensors").write_bytes(b"broken: must not be read")
    words = [a.replace("path=model", f"path={bare}") for a in arguments(own)]
    return [*words, f"run.dir={directory}/run"]


def test_a_tokenizer_without_template_gets_the_default_one_and_says_so(
    own: Path, tmp_path: Path
) -> None:
    words = _without_template(own, tmp_path)
    result = curriculum("data", "show", "rag_qa", *words[1:], cwd=own)
    assert result.returncode == 0, result.stderr
    assert "no chat template; conversations use the default one" in result.stderr
    assert "Assistant:\n\u27e6" in result.stdout


def test_a_tokenizer_without_template_and_end_of_text_is_refused_before_the_model(
    own: Path, tmp_path: Path
) -> None:
    words = _without_template(own, tmp_path)
    file = tmp_path / "model" / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in settings.items() if k != "eos_token"}))
    message = one_error(curriculum(*words, cwd=own))
    assert "eos_token" in message and "model.chat_template" in message
