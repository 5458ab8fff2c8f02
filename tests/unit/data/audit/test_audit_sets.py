"""Findings about whole sets: duplicates, ids, held-out data, lengths, reach, trained tokens."""

from pathlib import Path

import pytest
from audit_builders import chat, config_of, found, qa
from data_builders import byte_tokenizer, write_jsonl

from curriculum.data.audit import audit, audit_plan
from curriculum.data.windows import prepare


def _group(n: int, **extra: object) -> dict[str, object]:
    return {"query": f"q{n}", "positive": f"p{n}", "negatives": [f"a{n}", f"b{n}"], **extra}


def test_a_passage_twice_in_a_record(tmp_path: Path) -> None:
    rows = [qa(n) for n in range(10)]
    text = rows[3]["passages"][0]
    rows[3]["passages"] = [text, "Another one.", "  " + text.upper()]
    rows[4]["passages"] = [text, text + " And more."]  # same beginning, not the same
    finding = found(tmp_path, "qa", rows)["data/duplicate-in-record"]
    assert "1 of 10 records (10.0%) hold the same passage twice" in finding.message
    assert finding.examples == (f"{tmp_path}/train.jsonl:4",)


def test_equal_negatives(tmp_path: Path) -> None:
    rows = [_group(n) for n in range(10)]
    assert "data/duplicate-in-record" not in found(tmp_path, "retrieval", rows)
    rows[9]["negatives"] = ["x", "X "]
    finding = found(tmp_path, "retrieval", rows)["data/duplicate-in-record"]
    assert finding.examples == (f"{tmp_path}/train.jsonl:10",)


def test_a_repeated_message(tmp_path: Path) -> None:
    rows = [chat(f"{n}?", f"{n}!") for n in range(10)]
    rows[0]["messages"] *= 2  # short turns in turn: people say "yes" twice
    assert "data/duplicate-in-record" not in found(tmp_path, "messages", rows)
    rows[0]["messages"].insert(0, rows[0]["messages"][0])
    rows[1]["messages"] = 2 * chat("one?", "A long answer, word for word.")["messages"]
    assert "2 of 10" in found(tmp_path, "messages", rows)["data/duplicate-in-record"].message


def test_equal_records(tmp_path: Path) -> None:
    rows = [qa(n) for n in range(10)]
    assert "data/duplicate-documents" not in found(tmp_path, "qa", [*rows, qa(0, "Elsewhere")])
    again = {key: value.upper() if key == "question" else value for key, value in qa(2).items()}
    finding = found(tmp_path, "qa", [*rows, qa(0), again, qa(0)])["data/duplicate-documents"]
    assert "3 of 13 records (23.1%)" in finding.message
    assert "occurs 3 times" in finding.message
    assert finding.examples == tuple(f"{tmp_path}/train.jsonl:{n}" for n in (11, 12, 13))


def test_one_positive_of_two_queries_is_no_duplicate(tmp_path: Path) -> None:
    rows = [_group(n) for n in range(10)]
    rows[1]["positive"] = "p0"
    assert "data/duplicate-documents" not in found(tmp_path, "retrieval", rows)
    finding = found(tmp_path, "retrieval", [*rows, _group(5)])["data/duplicate-documents"]
    assert "1 of 11 records" in finding.message


def test_a_document_summarized_twice(tmp_path: Path) -> None:
    rows = [{"document": f"document {n}", "summary": f"s{n}"} for n in range(9)]
    finding = found(tmp_path, "summarization", [*rows, {"document": "DOCUMENT 1", "summary": "t"}])
    assert "1 of 10 documents" in finding["data/duplicate-documents"].message


def test_an_id_of_two_contents(tmp_path: Path) -> None:
    rows = [_group(n, id=n) for n in range(10)]
    assert "data/id-conflict" not in found(tmp_path, "retrieval", [*rows, _group(3, id=3)])
    finding = found(tmp_path, "retrieval", [*rows, _group(11, id=3)])["data/id-conflict"]
    assert "1 of 10 ids name records of different content (2 records)" in finding.message
    assert finding.examples == (f"{tmp_path}/train.jsonl:4", f"{tmp_path}/train.jsonl:11")


def test_held_out_records_that_are_trained_on(tmp_path: Path) -> None:
    heldout = tmp_path / "heldout.jsonl"
    rows = [qa(n) for n in range(20)]
    write_jsonl(heldout, [qa(30), qa(31)])
    assert "data/heldout-overlap" not in found(tmp_path, "qa", rows, heldout=[str(heldout)])
    shouted = qa(2) | {"question": str(qa(2)["question"]).upper()}
    write_jsonl(heldout, [qa(30), qa(0), qa(1, "Elsewhere"), shouted])
    finding = found(tmp_path, "qa", rows, heldout=[str(heldout)])["data/heldout-overlap"]
    assert "3 of 4 held-out prompts (75.0%) are in training data, 2 exactly" in finding.message
    assert "2 with the same target, 1 exactly" in finding.message
    assert finding.examples == tuple(f"{heldout}:{n}" for n in (2, 3, 4))


def test_held_out_records_are_found_in_another_task(tmp_path: Path) -> None:
    """A qa record and its conversation are the same prompt."""
    from dataclasses import replace

    heldout = write_jsonl(tmp_path / "heldout.jsonl", [qa(7)])
    one = write_jsonl(tmp_path / "train.jsonl", [qa(n) for n in range(3)])
    user = (
        "Question: Where does river 7 rise?\n\n[1] River 7 is long. It rises in hills 7, they say."
    )
    other = write_jsonl(tmp_path / "chats.jsonl", [chat(user, "In hills 7")])
    config = config_of(tmp_path, "qa", heldout=[str(heldout)], sources=[str(one)])
    chats = config_of(tmp_path, "messages", sources=[str(other)]).plan.phases["one"]
    phases = config.plan.phases | {"two": chats}
    findings = audit(replace(config, plan=replace(config.plan, phases=phases)), {})
    (finding,) = [f for f in findings if f.code == "data/heldout-overlap"]
    assert finding.phase == "one"
    assert "(training data of two)" in finding.message
    assert "1 with the same target, 1 exactly" in finding.message


def test_over_long_records(tmp_path: Path) -> None:
    rows = [qa(n, passages=["x" * 20]) for n in range(8)]
    long = [qa(n, passages=["y " * 200]) for n in range(8, 10)]
    kept = found(tmp_path, "qa", rows + long[:0], prepared=True, steps=50, seq_len=160)
    assert "data/over-long" not in kept
    finding = found(tmp_path, "qa", rows + long, prepared=True, steps=50, seq_len=160)
    assert "2 of 10 records read (20.0%)" in finding["data/over-long"].message
    assert "source shortened: 2" in finding["data/over-long"].message
    dropped = found(
        tmp_path, "qa", rows + long, prepared=True, steps=50, seq_len=160, on_over_long="drop"
    )["data/over-long"]
    assert "over-long: 2" in dropped.message
    assert set(dropped.examples) == {f"{tmp_path}/train.jsonl:{n}" for n in (9, 10)}


def test_text_split_into_pieces_is_not_over_long(tmp_path: Path) -> None:
    rows = [{"text": f"{n} " * 100} for n in range(10)]
    assert "data/over-long" not in found(tmp_path, "text", rows, prepared=True, steps=500)


def test_a_phase_that_reaches_a_small_part_of_its_file(tmp_path: Path) -> None:
    rows = [{"text": f"{n:03d} " + "x" * 40} for n in range(400)]
    # one record a window, two windows a step: 10 steps read 20 records of 400
    finding = found(tmp_path, "text", rows, prepared=True, steps=10)["data/head-only"]
    assert "20 of 400 records (5.0%)" in finding.message
    assert "evenly from the whole" in finding.message
    assert "data/head-only" not in found(tmp_path, "text", rows, prepared=True, steps=20)


def test_windows_prepared_for_more_steps_than_the_phase_has(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [{"text": f"{n:03d} " + "x" * 40} for n in range(400)])
    config = config_of(tmp_path, "text", steps=10)
    windows = prepare(config, "one", "train", byte_tokenizer(), 100)
    (figures,) = audit_plan(config, {"one": windows}).phases
    assert figures.reached == 20 / 400


def test_a_plan_that_is_scaled_down_is_judged_by_what_it_reaches_at_full_size(tmp_path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [{"text": f"{n:03d} " + "x" * 40} for n in range(400)])
    config = config_of(tmp_path, "text", steps=10)
    windows = {"one": prepare(config, "one", "train", byte_tokenizer(), 20)}
    codes = {size: [f.code for f in audit(config, windows, size)] for size in (1.0, 0.6, 0.5)}
    assert codes[1.0] == codes[0.6] == ["data/head-only"]
    assert codes[0.5] == []  # 20 of 400 at half the size are 40 of 400, the limit of 10%


def test_few_trained_tokens(tmp_path: Path) -> None:
    rows = [chat("word " * 100 + str(n), "y") for n in range(10)]
    few = found(tmp_path, "messages", rows, prepared=True, steps=50, seq_len=1024)
    assert few["data/low-trained-share"].severity == "warning"
    rows = [chat("word " * 100 + str(n), "y" * 30) for n in range(10)]
    assert "data/low-trained-share" not in found(
        tmp_path, "messages", rows, prepared=True, steps=50, seq_len=1024
    )


def test_records_that_train_nothing(tmp_path: Path) -> None:
    rows = [chat(f"{n}?", f"{n}!") for n in range(9)]
    mute = {"messages": [{"role": "user", "content": "hello?"}]}
    assert "data/no-trained-tokens" not in found(
        tmp_path, "messages", rows, prepared=True, steps=50
    )
    some = found(tmp_path, "messages", [*rows, mute], prepared=True, steps=50, on_bad_record="skip")
    assert some["data/no-trained-tokens"].severity == "warning"
    assert "1 of 10 records read (10.0%)" in some["data/no-trained-tokens"].message
    none = found(tmp_path, "messages", [mute] * 4)
    assert none["data/no-trained-tokens"].severity == "error"


def test_what_preparation_noted_is_enough_for_a_clean_set(tmp_path: Path) -> None:
    config = config_of(tmp_path, "qa", steps=20, seq_len=256)
    write_jsonl(tmp_path / "train.jsonl", [qa(n) for n in range(60)])
    windows = prepare(config, "one", "train", byte_tokenizer(), 40)
    assert audit(config, {"one": windows}) == []


@pytest.mark.parametrize("row", [{"question": "q"}, {"question": " ", "answer": "a"}, ["list"], 3])
def test_bad_records_are_counted_and_not_fatal(tmp_path: Path, row: object) -> None:
    write_jsonl(tmp_path / "train.jsonl", [qa(1), row, qa(2)])  # type: ignore[list-item]
    (figures,) = audit_plan(config_of(tmp_path, "qa"), {}).phases
    assert (figures.records, figures.bad) == (3, 1)
