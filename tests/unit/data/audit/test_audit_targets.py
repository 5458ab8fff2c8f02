"""Dominant targets and abstentions: what is counted, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
from audit_builders import chat, config_of, found, qa
from data_builders import write_jsonl
from qa_sets import ABSTENTION, write_dominant_set

from curriculum.data.abstention import BANK, fill
from curriculum.data.audit import audit, audit_plan
from curriculum.data.audit.abstains import wording

DOMINANT = "data/dominant-target"
PRESENT = "data/abstains-with-answer-present"
SHARE = "data/abstention-share"
IMBALANCE = "data/paraphrase-imbalance"


def _set(copies: int, total: int, target: str) -> list[dict[str, object]]:
    """`copies` records with one target, written in two ways, among `total`."""
    other = target.upper() + "  "
    return [qa(n, (other if n % 2 else target) if n < copies else None) for n in range(total)]


def test_one_target_too_often_is_an_error(tmp_path: Path) -> None:
    finding = found(tmp_path, "qa", _set(6, 100, "Blue hills"))[DOMINANT]
    assert finding.severity == "error"
    assert "6 of 100 targets (6.0%), 6 times the next" in finding.message
    assert '"Blue hills"' in finding.message
    assert finding.examples == tuple(f"{tmp_path}/train.jsonl:{n}" for n in (1, 2, 3))
    assert "deduplicate" in finding.remedy


@pytest.mark.parametrize(("copies", "severity"), [(5, "warning"), (3, "warning"), (2, None)])
def test_below_the_error_limit_it_is_a_warning(
    tmp_path: Path, copies: int, severity: str | None
) -> None:
    finding = found(tmp_path, "qa", _set(copies, 100, "Blue hills")).get(DOMINANT)
    assert (finding and finding.severity) == severity


def test_at_a_limit_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert DOMINANT not in found(tmp_path, "qa", _set(4, 400, "Blue hills"))


def test_the_last_assistant_turn_is_the_target_of_a_conversation(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"hello {n}"},
                {"role": "assistant", "content": "the same greeting"},
                {"role": "user", "content": f"and {n}?"},
                {"role": "assistant", "content": f"number {n}"},
            ]
        }
        for n in range(40)
    ]
    assert DOMINANT not in found(tmp_path, "messages", rows)
    rows = [row | {"messages": row["messages"][:2]} for row in rows]
    assert "40 of 40 targets" in found(tmp_path, "messages", rows)[DOMINANT].message


def test_a_call_of_a_tool_is_a_target(tmp_path: Path) -> None:
    call = {"function": {"name": "look", "arguments": "{}"}}
    turn = {"role": "assistant", "tool_calls": [call]}
    rows = [{"messages": [{"role": "user", "content": f"{n}?"}, turn]} for n in range(30)]
    assert "30 of 30 targets" in found(tmp_path, "messages", rows)[DOMINANT].message


def test_labels_are_told_how_to_be_silent(tmp_path: Path) -> None:
    rows = [chat(f"Is {n} even?", "no" if n % 2 else "yes") for n in range(100)]
    finding = found(tmp_path, "messages", rows)[DOMINANT]
    assert "50 of 100 targets (50.0%), 1 times the next" in finding.message
    assert "checks.ignore=[data/dominant-target]" in finding.remedy
    config = config_of(tmp_path, "messages")
    config = replace(config, checks=replace(config.checks, ignore=[DOMINANT]))
    assert [f.severity for f in audit(config, {}) if f.code == DOMINANT] == ["ignored"]


def test_the_set_that_started_it_all_at_a_tenth(tmp_path: Path) -> None:
    file = write_dominant_set(tmp_path / "train.jsonl", 7470, 2060)
    report = audit_plan(config_of(tmp_path, "qa"), {})
    finding = next(f for f in report.findings if f.code == DOMINANT)
    assert finding.severity == "error"
    assert not report.ok
    assert "2,060 of 7,470 targets (27.6%)" in finding.message
    assert ABSTENTION in finding.message
    assert f"python -m curriculum data abstain {file}" in finding.remedy
    (figures,) = report.phases
    assert (figures.records, figures.bad) == (7470, 0)
    assert figures.unanswerable == figures.top_target == pytest.approx(2060 / 7470)


def test_abstentions_above_a_quarter_warn(tmp_path: Path) -> None:
    rows = [
        qa(n, answerable=n >= 26, answer=f"No idea {n}" if n < 26 else None) for n in range(100)
    ]
    assert "26 of 100 records (26.0%) abstain" in found(tmp_path, "qa", rows)[SHARE].message
    rows[0]["answerable"] = True
    assert SHARE not in found(tmp_path, "qa", rows)


def test_a_plan_of_one_line_from_the_bank_is_a_plan(tmp_path: Path) -> None:
    rows = [{"request": f"trip {n}", "plan": BANK[0] if n < 40 else f"go {n}"} for n in range(50)]
    assert SHARE not in found(tmp_path, "planning", rows)
    rows = [{"request": f"trip {n}", "plan": "I cannot say" + "." * (n % 2)} for n in range(50)]
    assert SHARE not in found(tmp_path, "planning", rows)


def test_a_plan_that_ends_like_an_abstention_is_none(tmp_path: Path) -> None:
    target = "1. Go to town.\n2. Return if\nthe provided passages do not say."
    rows = [{"request": f"trip {n}", "plan": f"{n} {target}"} for n in range(50)]
    assert SHARE not in found(tmp_path, "planning", rows)


@pytest.mark.parametrize("field", ["gold_answer", "answers", "reference"])
def test_an_answer_named_by_a_field_stands_in_the_passages(tmp_path: Path, field: str) -> None:
    gold = {"text": ["hills 0"]} if field == "answers" else "Hills  0"
    rows = [qa(0, "Nobody knows.", answerable=False, **{field: gold}), *map(qa, range(1, 9))]
    finding = found(tmp_path, "qa", rows)[PRESENT]
    assert "1 of 1 abstentions" in finding.message
    assert finding.examples == (f"{tmp_path}/train.jsonl:1",)
    rows[0][field] = "hills"  # as a whole word it is there
    assert PRESENT in found(tmp_path, "qa", rows)
    rows[0][field] = "hill"  # but this is part of a word
    assert PRESENT not in found(tmp_path, "qa", rows)
    rows[0] |= {field: "hills 0", "answer": "In hills 0", "answerable": True}
    assert PRESENT not in found(tmp_path, "qa", rows)


def test_another_record_answers_the_same_question_from_these_passages(tmp_path: Path) -> None:
    answered = qa(1, "hills 1")
    rows = [answered, answered | {"answer": "Not known.", "answerable": False}, qa(2), qa(3)]
    finding = found(tmp_path, "qa", rows)[PRESENT]
    assert "1 by another record with the same question" in finding.message
    assert finding.examples == (f"{tmp_path}/train.jsonl:2",)
    rows[1]["passages"] = ["River 1 is long."]
    assert PRESENT not in found(tmp_path, "qa", rows)


def _abstentions(texts: list[str]) -> list[dict[str, object]]:
    return [
        qa(n, text, answerable=False, passages=[f"Nothing on {n}."]) for n, text in enumerate(texts)
    ] + [qa(n) for n in range(len(texts), 8 * len(texts))]


def test_one_wording_used_more_than_thrice_the_average(tmp_path: Path) -> None:
    texts = [f"Wording {letter} of it" for letter in "abcdefghijkl"] * 2  # 12 wordings, twice
    assert IMBALANCE not in found(tmp_path, "qa", _abstentions(texts))
    texts += ["Wording a of it"] * 8  # 10 of 32: 3.75 times 32 / 12
    finding = found(tmp_path, "qa", _abstentions(texts))[IMBALANCE]
    assert "in 32 records: the most frequent is used 10 times, 3.8 times" in finding.message
    assert IMBALANCE not in found(tmp_path, "qa", _abstentions(texts[:-4]))  # 6 x 12 / 28 = 2.57


def test_a_slot_that_the_question_does_not_explain_is_no_wording(tmp_path: Path) -> None:
    texts = [f"Wording {letter} of it" for letter in "abcdefghij"] * 5
    filled = [f"Nothing on person{n} here" for n in range(80)]  # 130 / 90 is no average to go by
    assert IMBALANCE not in found(tmp_path, "qa", _abstentions(texts + filled))


def test_few_wordings_warn_however_even(tmp_path: Path) -> None:
    texts = ["No.", "Not here.", "Who knows?"] * 10
    finding = found(tmp_path, "qa", _abstentions(texts))[IMBALANCE]
    assert "only 3 wordings" in finding.message


def test_the_bank_with_its_slots_filled_is_balanced(tmp_path: Path) -> None:
    rows = _abstentions(["?"] * (3 * len(BANK)))
    for n, row in enumerate(rows[: 3 * len(BANK)]):
        row["answer"] = fill(
            BANK[n % len(BANK)], entity=f"river {n}", question=str(row["question"])
        )
    assert IMBALANCE not in found(tmp_path, "qa", rows)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("The ruler of Tolvar is not known here.", "* is not known here"),
        ("The passages do not say.", "the passages do not say"),
        ('You ask "Who is the ruler of Tolvar?", yet nothing says.', "you ask * yet nothing says"),
    ],
)
def test_what_a_wording_takes_from_its_question_does_not_count(target: str, expected: str) -> None:
    assert wording(target, "Who is the ruler of Tolvar?") == expected


def test_a_set_without_targets_has_no_such_finding(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [{"text": "the same"}] * 50)
    codes = {f.code for f in audit(config_of(tmp_path, "text"), {})}
    assert codes == {"data/duplicate-documents"}
