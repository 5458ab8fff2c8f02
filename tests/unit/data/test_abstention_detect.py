"""Which records count as unanswerable: what each rule finds, and what none may touch."""

from pathlib import Path
from typing import Any

import pytest
from qa_sets import ABSTENTION, dominant_set, extractive, rebuilt

from curriculum.data.abstention import BANK, is_abstention
from curriculum.data.abstention.detect import resembles_abstention


def found(report: dict[str, Any]) -> dict[str, int]:
    return {rule: count for rule, count in report["found"].items() if count}


def answers_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["question"]: row["answer"] for row in rows}


def with_answers(answers: list[str], **more: Any) -> list[dict[str, Any]]:
    return [extractive(n, **more) | {"answer": text} for n, text in enumerate(answers)]


def test_a_flag_settles_a_record_whatever_its_target(tmp_path: Path) -> None:
    rows = [extractive(n, answerable=True) for n in range(80)]
    rows += [extractive(n, answerable=False) for n in range(80, 100)]
    rows += [extractive(100, answerable=True) | {"answer": BANK[0]}]
    out, report = rebuilt(tmp_path, rows, share=0.2)
    assert found(report) == {"flag": 20}
    by_question = answers_of(out)
    for row in rows:
        kept_answer = by_question[row["question"]] == row["answer"]
        assert kept_answer == row["answerable"]
    assert any("1 records are flagged answerable" in note for note in report["notes"])


def test_a_dominant_abstention_is_found_whatever_its_case_and_marks(tmp_path: Path) -> None:
    rows = dominant_set(1000, 270)
    spellings = (ABSTENTION, ABSTENTION.upper(), f"  {ABSTENTION[:-1]}!")
    hit = [n for n, row in enumerate(rows) if row["answer"] == ABSTENTION]
    for place, n in enumerate(hit):
        rows[n]["answer"] = spellings[place % 3]
    out, report = rebuilt(tmp_path, rows)
    assert found(report) == {"dominant": 270}
    assert not any(row["answer"].strip().lower()[:12] == ABSTENTION.lower()[:12] for row in out)


def test_an_unknown_sentence_dominates_if_far_more_frequent_than_the_next(tmp_path: Path) -> None:
    german = "Dazu steht in den Texten leider nichts."
    assert not resembles_abstention(german)
    rows = [extractive(n) for n in range(300)] + with_answers([german] * 60)
    _, report = rebuilt(tmp_path, rows, absent="false")
    assert found(report) == {"dominant": 60}
    # two sentences of like frequency are two classes
    other = "Die Texte geben darüber genau Auskunft."
    rows = [extractive(n) for n in range(300)] + with_answers([german] * 60 + [other] * 50)
    _, report = rebuilt(tmp_path, rows, absent="false", share=0)
    assert found(report) == {}
    _, report = rebuilt(tmp_path, rows, absent="false", abstention=german.upper())
    assert found(report) == {"named": 60}
    # nor does a second sentence dominate beside an abstention that can be read
    rows = [extractive(n) for n in range(300)] + with_answers([ABSTENTION] * 60 + [other] * 50)
    assert found(rebuilt(tmp_path, rows, absent="false")[1]) == {"dominant": 60}


@pytest.mark.parametrize("absent", ["auto", "true"])
@pytest.mark.parametrize(
    "labels",
    [
        ["yes"] * 40 + ["no"] * 2,
        ["Yes."] * 40,
        ["Yes, the mill still grinds."] * 40,
        ["indoors"] * 40,
        ["contradiction"] * 40 + ["entailment"] * 20,
        ["The claim is not supported by the passages."] * 40 + ["The claim is supported."] * 20,
        ["The answer is no."] * 40,
    ],
)
def test_labels_are_never_rewritten(tmp_path: Path, labels: list[str], absent: str) -> None:
    """Frequent, in no passage, 40% of the set, far ahead of the next: still answers."""
    rows = [extractive(n) for n in range(1000, 1050)] + with_answers(labels)
    rows += [extractive(n, answerable=False) for n in range(2000, 2010)]
    ratio = 100 if "supported" in labels[0] or "answer is" in labels[0] else 10
    out, report = rebuilt(tmp_path, rows, absent=absent, share=0.05, dominant_ratio=ratio)
    assert found(report) == {"flag": 10}
    kept = [row["answer"] for row in out if row["question"] in answers_of(with_answers(labels))]
    assert kept == labels


def test_yes_and_no_beside_a_real_abstention(tmp_path: Path) -> None:
    rows = with_answers(["yes"] * 40 + ["no"] * 33 + ["The passages did not say this."] * 27)
    out, report = rebuilt(tmp_path, rows, share=0.2)
    assert found(report) == {"dominant": 27}
    assert sum(row["answer"] in ("yes", "no") for row in out) == 73


def test_a_frequent_answer_that_its_passages_hold_is_an_answer(tmp_path: Path) -> None:
    said = "The source is not known to anyone."
    assert resembles_abstention(said)
    rows = [extractive(n) for n in range(100)]
    rows += [
        extractive(n) | {"answer": said, "passages": [f"{n}: {said}"]} for n in range(100, 140)
    ]
    _, report = rebuilt(tmp_path, rows, share=0)
    assert found(report) == {}
    assert report["frequent"][0]["verdict"].startswith("answer")
    # the wording of a bank, but the passage says so too
    rows[0] |= {"answer": "The cause is not known.", "passages": ["Sadly, the cause is not known."]}
    assert is_abstention(rows[0]["answer"])
    assert found(rebuilt(tmp_path, rows, share=0)[1]) == {}


def test_a_missing_answer_counts_only_where_nearly_all_others_are_there(tmp_path: Path) -> None:
    lost = [extractive(n) | {"answer": f"Nobody {n}"} for n in range(12)]
    kept = [extractive(n) for n in range(100, 290)]
    out, report = rebuilt(tmp_path, kept + lost, share=0.05)
    assert found(report) == {"absent": 12}
    assert report["held_share"] == pytest.approx(190 / 202)
    assert sum(is_abstention(row["answer"]) for row in out) == 10

    few = kept[:50]
    _, report = rebuilt(tmp_path, few + lost, share=0)
    assert found(report) == {}
    assert any("absent=true" in note and "80.6%" in note for note in report["notes"])
    assert found(rebuilt(tmp_path, few + lost, absent="true")[1]) == {"absent": 12}
    assert found(rebuilt(tmp_path, kept + lost, absent="false", share=0)[1]) == {}


@pytest.mark.parametrize(
    ("answer", "passage", "held"),
    [
        ("New York", "He left  NEW\u2028york, then", True),
        ("ﬁne Café", "a fine cafe\u0301 there", True),
        ("art", "a party of three", False),
        ("art", "The party: pop-art!", True),
        ("3.5%", "it grew 3.5 % a year", True),
        ("+", "1 + 1", True),
        ("-", "1 + 1", False),
        ("東京", "彼は東京に住む", True),
        ("2,000", "12,000 people", False),
        ("old tom", "old town, cold tom, old  Tom", True),
    ],
)
def test_what_a_passage_holds(answer: str, passage: str, held: bool) -> None:
    from curriculum.data.abstention.passages import holding

    assert holding(answer, ["nothing of it", passage]) == [False, held]


def test_a_paraphrase_of_a_bank_is_found_without_flag_or_number(tmp_path: Path) -> None:
    rows = [extractive(n) for n in range(90)] + with_answers(list(BANK[:10]))
    _, report = rebuilt(tmp_path, rows, absent="false", dominant="false")
    assert found(report) == {"wording": 10}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("I don't know.", True),
        ("Not enough information", True),
        ("unanswerable", True),
        ("The answer cannot be determined from the context.", True),
        ("There is no mention of this in the document.", True),
        ("None", False),
        ("No.", False),
        ("no, the document says", False),
        ("The statement is not true according to the text.", False),
        ("Paris", False),
        ("He was told to wait.", False),
    ],
)
def test_what_reads_as_an_abstention(text: str, is_one: bool) -> None:
    assert resembles_abstention(text) == is_one
