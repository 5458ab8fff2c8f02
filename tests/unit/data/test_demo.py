"""The demo corpus: complete, repeatable, disjoint splits, hard pools, no target that dominates."""

import hashlib
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curriculum.data import demo
from curriculum.data.abstention import is_abstention
from curriculum.data.demo.abstentions import BANK
from curriculum.errors import UserError

CORRECTIVE = [
    "rag_qa",
    "retrieval_university",
    "instruction",
    "causal_foundations",
    "summarization",
    "retrieval_advanced",
    "causal_university",
    "qa_mixture",
    "retrieval_school",
    "planning",
]
OTHERS = [
    "base_causal",
    "base_retrieval",
    "base_tasks",
    "retrieval_foundations",
    "causal_school",
    "causal_advanced",
    "calibration",
]
TARGETS = {
    "rag_qa": "answer",
    "qa_mixture": "answer",
    "instruction": "response",
    "summarization": "summary",
    "planning": "plan",
}
TIERS = ("retrieval_school", "retrieval_university", "retrieval_advanced", "retrieval_foundations")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "corpus"
    demo.generate(root, seed=7)
    return root


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    out = corpus.parent / "tokenizer"
    assert demo.train_tokenizer(corpus, out) > 300
    return PreTrainedTokenizerFast.from_pretrained(out)


def read(root: Path, phase: str, split: str) -> list[dict[str, Any]]:
    text = (root / phase / f"{split}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def digest(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def flat(value: object) -> str:
    """All text of a record, lower case, white space collapsed; the id aside."""
    if isinstance(value, dict):
        return " | ".join(flat(item) for key, item in sorted(value.items()) if key != "id")
    if isinstance(value, list):
        return " | ".join(flat(item) for item in value)
    return " ".join(str(value).lower().split())


def test_every_phase_has_both_splits(corpus: Path) -> None:
    assert {path.name for path in corpus.iterdir() if path.is_dir()} == {*CORRECTIVE, *OTHERS}
    for phase in (*CORRECTIVE, *OTHERS):
        assert read(corpus, phase, "train")
        assert len(read(corpus, phase, "heldout")) >= 100


def test_the_same_seed_gives_the_same_bytes_in_another_process(corpus: Path) -> None:
    again = corpus.parent / "again"
    code = (
        "import sys; from pathlib import Path; from curriculum.data import demo;"
        "demo.generate(Path(sys.argv[1]), seed=7); print('torch' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(again)], check=True, capture_output=True, text=True
    )
    assert digest(again) == digest(corpus)
    assert shown.stdout.strip() == "False"


def test_splits_share_no_record(corpus: Path) -> None:
    for phase in (*CORRECTIVE, *OTHERS):
        train = {flat(record) for record in read(corpus, phase, "train")}
        heldout = [flat(record) for record in read(corpus, phase, "heldout")]
        assert len(set(heldout)) == len(heldout), phase
        assert train.isdisjoint(heldout), phase


def test_a_held_out_question_with_its_passages_is_not_in_training(corpus: Path) -> None:
    for phase in ("rag_qa", "qa_mixture"):
        train = {flat([r["question"], r["passages"]]) for r in read(corpus, phase, "train")}
        heldout = {flat([r["question"], r["passages"]]) for r in read(corpus, phase, "heldout")}
        assert train.isdisjoint(heldout)


def test_no_generative_target_dominates(corpus: Path) -> None:
    for phase, field in TARGETS.items():
        targets = Counter(record[field] for record in read(corpus, phase, "train"))
        assert targets.most_common(1)[0][1] < 0.01 * targets.total(), phase


@pytest.mark.parametrize(("phase", "share"), [("rag_qa", 0.1), ("qa_mixture", 0.2)])
def test_a_share_of_the_questions_has_no_answer_and_the_bank_is_used_evenly(
    corpus: Path, phase: str, share: float
) -> None:
    records = read(corpus, phase, "train")
    missing = [record for record in records if not record["answerable"]]
    assert len(missing) == round(share * len(records))
    used: Counter[str] = Counter()
    for record in missing:
        matching = [text for text in BANK if is_abstention(record["answer"], (text,))]
        assert matching, record["answer"]
        used.update(matching[:1])
    assert len(used) == len(BANK)
    assert max(used.values()) <= len(missing) / len(BANK) + 1


@pytest.mark.parametrize("phase", ["rag_qa", "qa_mixture"])
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_answers_stand_in_the_passages_exactly_if_answerable(
    corpus: Path, phase: str, split: str
) -> None:
    kinds: Counter[bool] = Counter()
    for record in read(corpus, phase, split):
        kinds[record["answerable"]] += 1
        told = " ".join(record["passages"])
        assert (record["answer"] in told) == record["answerable"]
        assert is_abstention(record["answer"]) != record["answerable"]
    if split == "heldout":
        assert kinds[True] >= 150 and kinds[False] >= 50


@pytest.mark.parametrize("phase", TIERS)
def test_the_held_out_pool_is_large_and_hard(corpus: Path, phase: str) -> None:
    records = read(corpus, phase, "heldout")
    documents = [text for r in records for text in (r["positive"], *r["negatives"])]
    assert len(set(documents)) >= 200
    shares = []
    for record in records:
        assert len(record["negatives"]) == 2
        positive = Counter(re.findall(r"\w+", record["positive"]))
        for negative in record["negatives"]:
            common = positive & Counter(re.findall(r"\w+", negative))
            shares.append(common.total() / positive.total())
    assert sum(shares) / len(shares) > 0.5
    assert len({record["id"] for record in records}) == len(records)


@pytest.mark.parametrize("phase", TIERS)
def test_no_training_group_holds_a_held_out_positive(corpus: Path, phase: str) -> None:
    positives = {flat(record["positive"]) for record in read(corpus, phase, "heldout")}
    for record in read(corpus, phase, "train"):
        assert positives.isdisjoint(map(flat, (record["positive"], *record["negatives"])))


@pytest.mark.parametrize("phase", TIERS)
def test_a_query_has_one_right_document_in_its_pool(corpus: Path, phase: str) -> None:
    world = demo.make_world(7)
    relations = ["ruler", "founder", "ware", "river", "emblem", "colour", "tree", "ally"]
    seasons = ["spring", "summer", "autumn", "winter"]

    def keys(text: str) -> tuple[object, ...]:
        """Season, and for each sentence its relation with the first town named."""
        found: set[tuple[str, str]] = set()
        for sentence in re.split(r"[.?:]", text):
            words = re.findall(r"\w+", sentence)
            towns = [word for word in words if word in world.towns]
            kinds = [word for word in words if word in relations]
            found.update(zip(towns[:1], kinds[:1], strict=True))
        return next((s for s in seasons if s in text), None), frozenset(found)

    records = read(corpus, phase, "heldout")
    pool = Counter(keys(text) for r in records for text in (r["positive"], *r["negatives"]))
    assert max(pool.values()) == 1
    for record in records:
        assert keys(record["query"]) == keys(record["positive"])


def test_a_killed_generation_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.tasks, "planning", die)
    with pytest.raises(KeyboardInterrupt):
        demo.generate(tmp_path / "corpus", seed=7)
    assert not (tmp_path / "corpus").exists()


def test_a_finished_corpus_is_kept_and_other_files_are_never_replaced(
    corpus: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*.jsonl")}
    demo.generate(corpus, seed=7)
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*.jsonl")} == before
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not the demo corpus"):
        demo.generate(own, seed=7)
    assert (own / "notes.txt").read_text() == "mine"


def test_another_seed_is_another_world() -> None:
    worlds = [demo.make_world(seed) for seed in (1, 2)]
    assert set(worlds[0].towns) != set(worlds[1].towns)
    for world in worlds:
        names = [name for values in world.values.values() for name in values]
        assert len({name.lower() for name in names}) == len(names)


def test_no_word_is_unknown_and_decoding_gives_the_text_back(corpus: Path, tokenizer: Any) -> None:
    rng = random.Random(0)
    for phase in (*CORRECTIVE, *OTHERS):
        for split in ("train", "heldout"):
            for record in rng.sample(read(corpus, phase, split), 40):
                for text in flat_texts(record):
                    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                    assert tokenizer.unk_token_id not in ids, text
                    assert tokenizer.decode(ids).split() == text.split()


def flat_texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [t for key, item in value.items() if key != "id" for t in flat_texts(item)]
    return [t for item in value for t in flat_texts(item)] if isinstance(value, list) else []


def test_words_of_the_calibration_data_come_last_in_the_vocabulary(
    corpus: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """Every other word has the number that it has without that data."""
    from transformers import PreTrainedTokenizerFast

    for phase in (*CORRECTIVE, *OTHERS):
        if phase != "calibration":
            (tmp_path / "corpus" / phase).mkdir(parents=True)
            for split in ("train", "heldout"):
                source = corpus / phase / f"{split}.jsonl"
                (tmp_path / "corpus" / phase / source.name).write_bytes(source.read_bytes())
    count = demo.train_tokenizer(tmp_path / "corpus", tmp_path / "tokenizer")
    without = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer").get_vocab()
    added = {word: place for word, place in tokenizer.get_vocab().items() if word not in without}
    assert added == {"B": count, "C": count + 1}
    assert without.items() <= tokenizer.get_vocab().items()


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_targets_of_the_calibration_data_follow_from_the_lines(corpus: Path, split: str) -> None:
    """Each line that is about the town of the question is as good an answer as the others."""
    kinds: Counter[int] = Counter()
    certain: Counter[str] = Counter()
    for record in read(corpus, "calibration", split):
        *lines, question = re.split(r"(?<=\.) ", record["prompt"])
        relation, town = re.fullmatch(r"Which (\w+) does (\w+) have\?", question).groups()
        letters = [re.fullmatch(r".+ \((\w)\)\.", line).group(1) for line in lines]
        assert letters == record["choices"] == ["A", "B", "C"]
        telling = [line.startswith(f"{town} has the {relation} ") for line in lines]
        assert [town in line for line in lines] == telling
        kinds[sum(telling)] += 1
        if sum(telling) == 1:
            assert record["answer"] == letters[telling.index(True)]
            certain[record["answer"]] += 1
        else:
            likely = telling if any(telling) else [True] * 3
            assert record["target_probs"] == [one / sum(likely) for one in likely]
    total = kinds.total()
    assert all(0.15 < kinds[n] / total < 0.35 for n in (0, 2)) and kinds[1] / total > 0.4
    assert all(count > 0.25 * certain.total() for count in certain.values())


def test_the_demo_model_has_room_for_the_vocabulary(tokenizer: Any) -> None:
    conf = Path(demo.__file__).parents[3] / "conf" / "model" / "demo.yaml"
    rows = int(re.findall(r"vocab_size: (\d+)", conf.read_text())[0])
    assert len(tokenizer) <= rows
    assert rows % 64 == 0


def test_special_tokens_are_distinct(tokenizer: Any) -> None:
    ends = [tokenizer.convert_tokens_to_ids(t) for t in ("<|im_start|>", "<|im_end|>")]
    ids = {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id, *ends}
    assert len(ids) == 5 and None not in ids
    assert tokenizer.eos_token == "<|endoftext|>"


def test_the_chat_template_renders_prefixes_of_one_another(corpus: Path, tokenizer: Any) -> None:
    turns = [
        {"role": "system", "content": "Say this twice."},
        {"role": "user", "content": "Plan: plant oak.\n\n[1] Buy young oak."},
        {"role": "assistant", "content": "1. Buy young oak.\n2. Plant the oak."},
        {"role": "user", "content": "Question: What is the tree of oak?"},
        {"role": "assistant", "content": "Not known."},
    ]

    def render(count: int, prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            turns[:count], tokenize=False, add_generation_prompt=prompt
        )

    whole = render(5, False)
    assert whole.startswith("<|im_start|>system\nSay this twice.<|im_end|>\n<|im_start|>user\n")
    for count in range(1, 5):
        assert whole.startswith(render(count, False))
        if turns[count]["role"] == "assistant":
            opened = render(count, True)
            assert opened == render(count, False) + "<|im_start|>assistant\n"
            closed = opened + turns[count]["content"] + "<|im_end|>\n"
            assert closed == render(count + 1, False)


def test_two_turns_of_a_base_task_read_as_the_data_path_renders_them(corpus: Path) -> None:
    kinds: Counter[str] = Counter()
    for record in read(corpus, "base_tasks", "train")[:400]:
        user, assistant = record["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        for kind, opening in (
            ("qa", r"Question: .+\?\n\n\[1\] .+\n\[2\] .+"),
            ("summarization", r"Summarize:\n\n.+"),
            ("planning", r"Plan: .+"),
        ):
            if re.fullmatch(opening, user["content"]):
                kinds[kind] += 1
                break
        else:
            kinds["instruction"] += 1
    assert min(kinds[k] for k in ("qa", "summarization", "planning", "instruction")) >= 50


def test_tokenizer_files_repeat(corpus: Path, tokenizer: Any, tmp_path: Path) -> None:
    demo.train_tokenizer(corpus, tmp_path / "tokenizer")
    assert digest(tmp_path / "tokenizer") == digest(corpus.parent / "tokenizer")
