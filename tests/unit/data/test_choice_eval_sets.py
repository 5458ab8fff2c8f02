"""A choice eval that has nothing to evaluate, or no set, is refused before anything trains."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_builders import config_for, word_tokenizer, write_jsonl
from packed_choice_builders import write_evaluation, write_training

from curriculum.choice_evals.sets import EvalSet, open_sets
from curriculum.config import ChoiceEval
from curriculum.errors import RunError, UserError

GOOD = {"prompt": "sky sea", "choices": ["yes", "no"], "answer": 0}


def opened(root: Path, where: str) -> EvalSet:
    tokenizer = word_tokenizer(["sky", "sea", "yes", "no", "user", "assistant", "\n", " "])
    config = config_for(root, "choice", seq_len=24, model={"config": {"vocab_size": 50}})
    config = replace(config, choice_eval=ChoiceEval(sets={"quiz": where}))
    return open_sets(config, tokenizer)["quiz"]


RECORDS: dict[str, tuple[str, str]] = {
    "an empty file": ("", "the file is empty; a source needs at least one record"),
    "blank lines": ("\n\n", "holds no record; a source needs at least one record"),
    "a line that is cut": (json.dumps(GOOD)[:-9], r"quiz\.jsonl:1: .* not valid JSON"),
    "all over-long": (
        json.dumps({**GOOD, "prompt": "sky " * 99}),
        r"quiz\.jsonl:1: \d+ tokens do not fit seq_len=24(.|\n)*choice_eval\.sets\.quiz: records",
    ),
    "choices of several tokens": (
        json.dumps({**GOOD, "choices": ["yes no", "no"]}),
        "choices.0.='yes no' is 3 tokens(.|\n)*an answer prefix .* by `data pack-choice split=eval",
    ),
}


@pytest.mark.parametrize("kind", RECORDS)
def test_records_that_give_no_row(tmp_path: Path, kind: str) -> None:
    text, told = RECORDS[kind]
    (tmp_path / "quiz.jsonl").write_text(text)
    with pytest.raises(RunError, match=told):
        opened(tmp_path, str(tmp_path / "quiz.jsonl"))
    assert not list((tmp_path / "cache").glob("**/manifest.json"))


def test_one_bad_record_refuses_the_whole_set(tmp_path: Path) -> None:
    """Left out in silence, it would change what the figures are of."""
    write_jsonl(tmp_path / "quiz.jsonl", [GOOD, {**GOOD, "answer": 2}])
    with pytest.raises(RunError, match=r"quiz\.jsonl:2: answer=2: an index from 0 to 1 is needed"):
        opened(tmp_path, str(tmp_path / "quiz.jsonl"))


def test_places_that_are_no_set(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match=r"choice_eval\.sets\.quiz=.*bare: neither a directory of"):
        opened(tmp_path, str(tmp_path / "bare"))
    write_evaluation(tmp_path / "one")
    write_evaluation(tmp_path / "other")
    with pytest.raises(UserError, match="2 packed sets; a set is one directory"):
        opened(tmp_path, str(tmp_path / "o*"))
    with pytest.raises(RunError, match="simile-packed-choice-eval/v1 is needed here"):
        opened(tmp_path, str(write_training(tmp_path / "train")))
    with pytest.raises(RunError, match="num_rows=0: must be a whole number of at least 1"):
        opened(tmp_path, str(write_evaluation(tmp_path / "empty", num_rows=0)))


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_few_rows_are_a_set(tmp_path: Path, rows: int) -> None:
    made: list[dict[str, Any]] = [{**GOOD, "prompt": "sky " * (n + 1)} for n in range(rows)]
    write_jsonl(tmp_path / "quiz.jsonl", made)
    assert opened(tmp_path, str(tmp_path / "quiz.jsonl")).rows == rows
