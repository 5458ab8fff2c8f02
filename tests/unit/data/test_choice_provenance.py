"""A packed set is of one tokenizer's ids: others are refused, and sets without a note are not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_builders import CHATML, byte_tokenizer, config_for, word_tokenizer, write_jsonl
from packed_choice_builders import write_evaluation, write_training
from transformers import PreTrainedTokenizerFast

from curriculum.choice_evals.sets import open_sets
from curriculum.cli import main
from curriculum.config import ChoiceEval
from curriculum.data.packed_choice import BadSet
from curriculum.data.tokenizer import tokenizer_digest
from curriculum.data.windows import prepare

WORDS = ["yes", "no", "sky", "sea", "user", "assistant", "\n", " ", "?"]
ROWS = [{"prompt": "sky?", "choices": ["yes", "no"], "answer": 0}] * 3


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(WORDS)


@pytest.fixture
def other() -> PreTrainedTokenizerFast:
    """As many words, two of them exchanged."""
    return word_tokenizer(["no", "yes", *WORDS[2:]])


@pytest.fixture
def place(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`train` and `quiz`, packed by the command."""
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained("tok")
    write_jsonl(tmp_path / "in.jsonl", ROWS)
    shared = ["data", "pack-choice", "in.jsonl"]
    options = ["seq_len=40", "model.tokenizer=tok"]
    assert main([*shared, "train", *options, "split=train"]) == 0
    assert main([*shared, "quiz", *options, "split=eval"]) == 0
    return tmp_path


def train(place: Path, tokenizer: Any) -> int:
    config = config_for(place, "choice", seq_len=40, sources=[str(place / "train")])
    return len(prepare(config, "one", "train", tokenizer, None))


def evaluate(place: Path, tokenizer: Any) -> int:
    config = config_for(place, "choice", seq_len=40)
    config = replace(config, choice_eval=ChoiceEval(sets={"quiz": str(place / "quiz")}))
    return open_sets(config, tokenizer)["quiz"].rows


def note(directory: Path, source: Any) -> None:
    values = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**values, "source": source}))


def test_ids_of_other_words_are_refused(place: Path, tokenizer: Any, other: Any) -> None:
    assert train(place, tokenizer) == 1 and evaluate(place, tokenizer) == 3
    assert len(other) == len(tokenizer)  # a range of ids would show nothing
    for name, opened in (("train", train), ("quiz", evaluate)):
        with pytest.raises(BadSet) as refused:
            opened(place, other)
        told = str(refused.value)
        assert told.startswith(f"{place / name / 'manifest.json'}: source.tokenizer.vocabulary=")
        assert f"packed with another tokenizer, that of {place / 'tok'}, than" in told
        assert "remedy: pack its records again" in told and "\n" not in told


def test_the_same_ids_pass_whatever_else_the_tokenizer_says(place: Path, tokenizer: Any) -> None:
    tokenizer.eos_token = "no"
    train(place, tokenizer)
    evaluate(place, tokenizer)


def test_a_note_without_a_digest_of_the_vocabulary(place: Path, tokenizer: Any, other: Any) -> None:
    note(place / "train", {"tokenizer": {"directory": "/x", "sha256": tokenizer_digest(tokenizer)}})
    train(place, tokenizer)
    with pytest.raises(BadSet, match=r"source\.tokenizer\.sha256=.*, that of /x, than the one"):
        train(place, other)


@pytest.mark.parametrize(
    "source",
    [None, "by hand", {}, {"tokenizer": "gpt"}, {"tokenizer": {"sha256": "of a file"}}],
)
def test_sets_of_others_pass(tmp_path: Path, source: Any, other: Any) -> None:
    write_training(tmp_path / "train", source=source)
    write_evaluation(tmp_path / "quiz", source=source)
    config = config_for(
        tmp_path,
        "choice",
        sources=[str(tmp_path / "train")],
        model={"config": {"vocab_size": 50}},
    )
    config = replace(config, choice_eval=ChoiceEval(sets={"quiz": str(tmp_path / "quiz")}))
    assert len(prepare(config, "one", "train", other, None)) == 4
    assert open_sets(config, other)["quiz"].rows == 6


def test_records_that_a_run_packs_are_noted_too(tmp_path: Path, tokenizer: Any, other: Any) -> None:
    """So that its cache, named as a packed directory, cannot be mistaken either."""
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    tokenizer.save_pretrained(tmp_path / "tok")
    config = config_for(tmp_path, "choice", seq_len=40, model={"tokenizer": str(tmp_path / "tok")})
    config = replace(config, choice_eval=ChoiceEval(sets={"quiz": str(tmp_path / "train.jsonl")}))
    made = prepare(config, "one", "train", tokenizer, None).directory
    quiz = open_sets(config, tokenizer)["quiz"].directory
    for directory in (made, quiz):
        noted = json.loads((directory / "manifest.json").read_text())["source"]["tokenizer"]
        assert noted["directory"] == str(tmp_path / "tok")
    elsewhere = config_for(tmp_path, "choice", seq_len=40, sources=[str(made)])
    with pytest.raises(BadSet, match="packed with another tokenizer"):
        prepare(elsewhere, "one", "train", other, None)


def test_showing_a_set_with_another_tokenizer_says_so(
    place: Path, other: Any, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    other.save_pretrained("other")
    byte_tokenizer(CHATML).save_pretrained("bytes")
    for name, told in (("tok", False), ("other", True), ("bytes", True)):
        caplog.clear()
        assert main(["data", "unpack-choice", "train", "0", f"model.tokenizer={name}"]) == 0
        assert ("train: source.tokenizer.vocabulary" in caplog.text) is told, name
    capsys.readouterr()
