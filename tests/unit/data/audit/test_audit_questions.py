"""Questions that a truncation cut away: found in the shapes that sets have, and not elsewhere."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_builders import chat, found
from qa_sets import dominant_set

CODE = "data/question-truncated"
Row = dict[str, Any]


def _prompts(records: int = 300, label: str = "Question: ") -> tuple[list[str], list[Row]]:
    """Passages first, the question last."""
    rng = random.Random(5)
    rows = dominant_set(records, 0)
    for row in rows:
        row["passages"] = row["passages"][: rng.randint(1, 4)]
    texts = ["\n".join(r["passages"]) + f"\n\n{label}{r['question']}" for r in rows]
    return texts, rows


def _limit(texts: list[str], share: float) -> int:
    """The length that `share` of the texts exceed."""
    return sorted(map(len, texts))[int(len(texts) * (1 - share))]


SHAPES: dict[str, Callable[[str, str], Row]] = {
    "messages": lambda prompt, answer: chat(prompt, answer),
    "prompt_completion": lambda prompt, answer: {"prompt": prompt, "completion": answer},
    "qa": lambda prompt, answer: {"question": prompt, "answer": answer},
    "instruction": lambda prompt, answer: {"instruction": prompt, "response": answer},
}


@pytest.mark.parametrize("task", SHAPES)
@pytest.mark.parametrize("label", ["Question: ", "", "Frage: "])
@pytest.mark.parametrize("unit", ["characters", "words", "tokens"])
def test_a_fixed_length_that_cuts_questions_away(
    tmp_path: Path, task: str, label: str, unit: str
) -> None:
    texts, rows = _prompts(label=label)
    limit = _limit(texts, 0.338)
    if unit == "characters":
        cut = [text[:limit] for text in texts]
    elif unit == "words":
        cut = [" ".join(text.split(" ")[: limit // 6]) for text in texts]
    else:  # a token is a letter or two: the same number of tokens, different numbers of letters
        cut = [text[: limit + hash_of(text) % 40] for text in texts]
    lost = sum(r["question"] not in c for r, c in zip(rows, cut, strict=True))
    made = [SHAPES[task](c, r["answer"]) for r, c in zip(rows, cut, strict=True)]
    finding = found(tmp_path, task, made)[CODE]
    assert finding.severity == "error"
    count = int(finding.message.split(" of 300 records")[0].split()[-1])
    assert count == pytest.approx(lost, rel=0.15)
    whole = [SHAPES[task](text, r["answer"]) for r, text in zip(rows, texts, strict=True)]
    assert CODE not in found(tmp_path, task, whole)


def hash_of(text: str) -> int:
    return sum(text.encode())


@pytest.mark.parametrize("label", ["Question: ", ""])
def test_long_prompts_cut_beside_short_ones_that_are_whole(tmp_path: Path, label: str) -> None:
    texts, rows = _prompts(60, label)
    long = " ".join(passage for row in rows for passage in row["passages"])
    made = [
        chat(((long[7 * n :] if n % 3 == 0 else "Short. ") + text)[:2000], row["answer"])
        for n, (text, row) in enumerate(zip(texts, rows, strict=True))
    ]
    assert "20 of 60 records (33.3%)" in found(tmp_path, "messages", made)[CODE].message


@pytest.mark.parametrize("field", ["question", "query"])
@pytest.mark.parametrize("task", ["messages", "prompt_completion", "text"])
def test_a_field_that_names_the_question_counts_exactly(
    tmp_path: Path, task: str, field: str
) -> None:
    texts, rows = _prompts(label="")
    make = SHAPES.get(task) or (lambda prompt, answer: {"text": prompt})
    made = []
    for n, (text, row) in enumerate(zip(texts, rows, strict=True)):
        shown = text.removesuffix(row["question"]) if n % 100 == 0 else text
        made.append(make(shown, row["answer"]) | {field: row["question"].upper()})
    finding = found(tmp_path, task, made)[CODE]
    assert finding.severity == "warning"  # 1% is no more than the limit
    assert "3 of 300 records (1.0%)" in finding.message
    assert finding.examples == tuple(f"{tmp_path}/train.jsonl:{n}" for n in (1, 101, 201))


def test_a_field_that_no_prompt_holds_is_something_else(tmp_path: Path) -> None:
    rows = [chat(f"Tell me about {n}.", f"{n}!", question=f"topic-{n}") for n in range(50)]
    assert CODE not in found(tmp_path, "messages", rows)


def test_a_rendered_prompt_beside_a_qa_record(tmp_path: Path) -> None:
    texts, rows = _prompts()
    limit = _limit(texts, 0.338)
    made = [row | {"prompt": text[:limit]} for text, row in zip(texts, rows, strict=True)]
    lost = sum(row["question"] not in row["prompt"] for row in made)
    assert f"{lost} of 300 records" in found(tmp_path, "qa", made)[CODE].message


def test_questions_cut_at_a_length_without_their_end(tmp_path: Path) -> None:
    names = ["Bell" * (n % 7) for n in range(200)]
    asked = [f"Who was the mayor of {name} in {n}?" for n, name in enumerate(names)]
    rows = [{"question": q[:45], "answer": f"a{n}"} for n, q in enumerate(asked)]
    lost = sum(len(q) > 45 for q in asked)
    assert lost > 20
    assert f"{lost} of 200 records" in found(tmp_path, "qa", rows)[CODE].message
    lower = [row | {"question": row["question"].rstrip("?")} for row in rows]
    assert CODE not in found(tmp_path, "qa", lower)


def test_prompts_of_two_kinds_are_no_truncation(tmp_path: Path) -> None:
    letters = [chat(f"Write a letter to person {n % 9} about rain", f"Dear {n}") for n in range(60)]
    asked = [chat(f"Why {n}?", f"So {n}") for n in range(140)]
    assert CODE not in found(tmp_path, "messages", letters + asked)


def test_one_length_with_and_without_a_full_stop_is_no_truncation(tmp_path: Path) -> None:
    ends = [" now" if n % 3 == 0 else " no." for n in range(20, 99)]
    told = [chat(f"Tell me of river {n}{end}", f"{n}") for n, end in enumerate(ends, 20)]
    asked = [chat(f"Why is it {n}?", f"So {n}") for n in range(200)]
    assert CODE not in found(tmp_path, "messages", told + asked)


def test_running_text_cut_into_pieces_is_no_truncation(tmp_path: Path) -> None:
    texts, _ = _prompts(label="")
    whole = " ".join(texts)
    rows = [{"text": whole[at : at + 500]} for at in range(0, len(whole), 500)]
    assert CODE not in found(tmp_path, "text", rows)


def test_no_room_for_the_question_in_a_window(tmp_path: Path) -> None:
    long = {"question": "why " * 40 + "?", "answer": "So.", "passages": ["Because."]}
    rows = [{"question": f"why {n}?", "answer": f"So {n}."} for n in range(9)]
    finding = found(
        tmp_path, "qa", [*rows, long], prepared=True, steps=50, seq_len=128
    )[CODE]  # fmt: skip
    assert finding.severity == "warning"
    assert "1 of 10 records read (10.0%) are dropped" in finding.message
    assert finding.examples == (f"{tmp_path}/train.jsonl:10",)
