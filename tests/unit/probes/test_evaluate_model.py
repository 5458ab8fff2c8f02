"""`eval` on a small saved Llama against `transformers` alone: unpacked, unsharded, one by one."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from curriculum import evaluate

ROOT = Path(evaluate.__file__).parents[1]
NAMES = ["Ann", "Bob", "Orr", "king", "passages", "Reasons", "first", "stated"]


@pytest.fixture
def model(tokenizer, tmp_path: Path) -> LlamaForCausalLM:
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=len(tokenizer), **sizes, **heads, initializer_range=0.3,
        max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    final = tmp_path / "run" / "final"
    model.save_pretrained(final)
    tokenizer.save_pretrained(final)
    return model


@pytest.fixture
def records() -> dict[str, list[dict[str, Any]]]:
    qa = [
        {"question": f"Who is {' '.join(NAMES[: i % 5 + 1])} ?", "answer": " ".join(NAMES[i:][:3])}
        for i in range(7)
    ]
    tier = [{"query": f"Who is {name}?", "positive": f"{name} is first"} for name in NAMES]
    text = [{"text": " ".join(NAMES[: i + 2])} for i in range(5)]
    return {"qa": qa, "tier": tier, "text": text}


@pytest.fixture
def run_dir(model, records, values, phase, write_jsonl, tmp_path) -> Path:
    """A run whose final model is `model`, on `records`."""
    files = {name: [write_jsonl(f"{name}.jsonl", rows)] for name, rows in records.items()}
    phases = {
        "qa": phase("generative", "qa", files["qa"], seq_len=48),
        "text": phase("causal", "text", files["text"]),
        "tier": phase("retrieval", "retrieval", files["tier"],
                      retrieval={"temperature": 0.05, "documents": 1}),
    }  # fmt: skip
    given = values(phases, batch_tokens=40)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(given))
    return tmp_path / "run"


def by_name(printed: str) -> dict[str, Any]:
    return {probe["name"]: probe["values"] for probe in json.loads(printed)["probes"]}


@pytest.fixture
def shown(run_dir, capsys) -> dict[str, Any]:
    """What `eval RUN output=json` prints."""
    assert evaluate.main([str(run_dir), "output=json"]) == 0
    return by_name(capsys.readouterr().out)


def nll(model: LlamaForCausalLM, ids: list[int], first: int) -> float:
    """Summed loss of `ids[first:]`, each predicted from all before it."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    logp = torch.log_softmax(logits, dim=-1)
    return -sum(logp[place - 1, ids[place]].item() for place in range(first, len(ids)))


def test_eval_equals_the_plain_model(shown, model, tokenizer, records) -> None:
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    end, eos = encode("<end>")[0], tokenizer.eos_token_id

    losses, tokens, outputs = 0.0, 0, []
    for record in records["qa"]:
        prompt = encode(f"<start>user\nQuestion: {record['question']}<end>\n<start>assistant\n")
        answer = [*encode(record["answer"]), end]
        losses += nll(model, prompt + answer, len(prompt))
        tokens += len(answer)
        new: list[int] = []
        while len(new) < 8 and not {end, eos} & set(new):
            with torch.no_grad():
                new.append(model(torch.tensor([prompt + new])).logits[0, -1].argmax().item())
        outputs.append((new, encode(record["answer"])))
    assert shown["qa.perplexity"]["trained_tokens"] == tokens
    assert shown["qa.perplexity"]["loss"] == pytest.approx(losses / tokens, rel=1e-5)
    assert shown["qa.perplexity"]["perplexity"] == pytest.approx(
        math.exp(losses / tokens), rel=1e-4
    )
    stopped = [bool({end, eos} & set(new)) for new, _ in outputs]
    assert shown["qa.generation"]["stopped_share"] == pytest.approx(np.mean(stopped))
    texts = [[t for t in new if t not in (end, eos)] for new, _ in outputs]
    trigrams = [[tuple(t[i : i + 3]) for i in range(len(t) - 2)] for t in texts]
    rates = [1 - len(set(t)) / len(t) if t else 0.0 for t in trigrams]
    assert shown["qa.generation"]["repeated_trigram_rate"] == pytest.approx(np.mean(rates))
    assert len({tuple(new) for new, _ in outputs}) > 1  # else the figures above say little

    causal = [[*encode(record["text"]), eos] for record in records["text"]]
    total = sum(nll(model, ids, 1) for ids in causal)
    count = sum(len(ids) - 1 for ids in causal)
    assert shown["text.perplexity"]["loss"] == pytest.approx(total / count, rel=1e-5)
    assert shown["perplexity.causal"] == pytest.approx(shown["text.perplexity"])

    def embed(text: str) -> np.ndarray:
        with torch.no_grad():
            hidden = model.model(torch.tensor([[*encode(text), eos]])).last_hidden_state[0, -1]
        return (hidden / hidden.norm()).numpy().astype(np.float64)

    documents = np.stack([embed(record["positive"]) for record in records["tier"]])
    found = []
    for place, record in enumerate(records["tier"]):
        scores = documents @ embed(record["query"])
        found.append(1 + int((np.delete(scores, place) >= scores[place]).sum()))
    assert len(set(found)) > 2
    assert shown["tier.retrieval"] == {
        "top1": pytest.approx(np.mean([rank == 1 for rank in found])),
        "mrr": pytest.approx(np.mean([1 / rank for rank in found])),
        "recall_at_10": 1.0,
        "worst_rank": max(found),
        "queries": 8,
        "pool": 8,
    }


@pytest.mark.slow
def test_two_ranks_give_what_one_gives(shown, run_dir, tmp_path) -> None:
    """Seven prompts, a few windows, uneven chunks: some rank always has less to do."""
    script = tmp_path / "evaluate_main.py"
    script.write_text(
        "import sys; from curriculum.evaluate import main; sys.exit(main(sys.argv[1:]))"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(script), str(run_dir), "output=json"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = by_name(done.stdout)
    assert list(found) == list(shown)
    for name, values in shown.items():
        assert found[name] == pytest.approx(values, rel=1e-6), name
