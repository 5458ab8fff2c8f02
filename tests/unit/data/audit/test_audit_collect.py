"""One pass: the same facts for any number of processes, and texts compared as records compare."""

import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from audit_builders import qa
from data_builders import write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from curriculum.data.audit import collect as module
from curriculum.data.audit.collect import collect
from curriculum.data.audit.compare import repeats, stands_in
from curriculum.data.audit.facts import Flag
from curriculum.data.records import normalised
from curriculum.data.sources import Source

ODD = st.text(st.sampled_from("aA zZ\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\u00a0\u2028ßﬁİ.,é"))


@given(st.text() | ODD)
def test_the_fast_form_is_the_plain_one(text: str) -> None:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    assert normalised(text) == plain


@given(st.lists(ODD.filter(lambda text: bool(text.strip())), max_size=5))
def test_repeats_is_what_comparing_all_pairs_says(texts: list[str]) -> None:
    equal = [normalised(a) == normalised(b) for n, a in enumerate(texts) for b in texts[:n]]
    if all(text.isascii() for text in texts):  # other scripts may differ in their first words
        assert repeats(texts) == any(equal)
    elif repeats(texts):
        assert any(equal)


@pytest.mark.parametrize(
    ("answer", "stands"),
    [("Paris", True), ("PARIS.", True), ("in  paris", True), ("Par", False), ("yes", False),
     ("1975", True), ("97", False), ("x", False), ("", False)],
)  # fmt: skip
def test_an_answer_stands_in_a_passage_as_whole_words(answer: str, stands: bool) -> None:
    assert list(stands_in([answer], ["Yes, he died in Paris (1975)."])) == [stands]


def test_any_number_of_processes_gives_the_same_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECORDS_A_WORKER", 10)
    rng = random.Random(1)
    rows = [qa(rng.randrange(40), rng.choice(["Unknown.", None])) for _ in range(60)]
    first = write_jsonl(tmp_path / "one.jsonl", [*rows[:7], {"question": "no answer"}])
    second = write_jsonl(tmp_path / "two.jsonl", rows[7:])
    source = Source([first, second], tmp_path)
    one, several = collect(source, "qa", 1), collect(source, "qa", 3)
    assert (one.records, one.bad) == (several.records, several.bad) == (61, 1)
    for name, column in (one.hashes | one.numbers).items():
        np.testing.assert_array_equal(column, (several.hashes | several.numbers)[name])
    assert [one.address(n) for n in (0, 6, 7, 59)] == [
        f"{first}:1", f"{first}:7", f"{second}:1", f"{second}:53"
    ]  # fmt: skip
    assert several.address(59) == f"{second}:53"


def test_what_is_kept_does_not_grow_with_the_records(tmp_path: Path) -> None:
    def size(length: int) -> int:
        rows = [qa(n, passages=["word " * length]) for n in range(20)]
        file = write_jsonl(tmp_path / f"{length}.jsonl", rows)
        facts = collect(Source([file], tmp_path), "qa")
        return sum(column.nbytes for column in (facts.hashes | facts.numbers).values())

    assert size(1) == size(2000)


def test_abstentions_are_known_by_flag_and_by_bank(tmp_path: Path) -> None:
    rows = [
        qa(0, "Just words.", answerable=False),
        qa(1, "Not stated in the sources."),  # a member of the bank
        qa(2, "Not stated in the sources, as I said."),
        qa(3, answerable=True),
    ]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    facts = collect(Source([file], tmp_path), "qa")
    assert facts.has(Flag.ABSTAINS).tolist() == [True, True, False, False]
