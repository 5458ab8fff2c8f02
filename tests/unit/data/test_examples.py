"""Policies: what is kept, cut, dropped and refused, and how it is counted."""

import json
from itertools import pairwise

import pytest
from data_builders import (
    THINK_STRIPPING,
    byte_tokenizer,
    config_for,
    decode,
    write_jsonl,
)

from curriculum.data.examples import build, document_id
from curriculum.data.sources import Source
from curriculum.errors import RunError

TOKENIZER = byte_tokenizer()
# "<|im_start|>user\n" + content + "<|im_end|>\n<|im_start|>assistant\n" + answer + "<|im_end|>\n"
FRAME = (1 + 5) + (1 + 1) + (1 + 10) + (1 + 1)


def _build(tmp_path, rows, task="qa", tokenizer=TOKENIZER, **options):
    file = write_jsonl(tmp_path / "train.jsonl", rows)
    config = config_for(tmp_path, task, **options)
    source = Source([file], tmp_path / "cache")
    return build(source, range(len(source)), "one", config.plan.phases["one"], tokenizer)


def _qa(question="q", answer="a", *passages):
    return {"question": question, "answer": answer, "passages": list(passages)}


def test_an_example_that_just_fits_is_left_alone(tmp_path):
    rows = [{"prompt": "x" * 20, "completion": "yes"}]
    length = FRAME + 20 + 3
    items, report = _build(tmp_path, rows, "prompt_completion", seq_len=length)
    assert len(items) == 1 and len(items[0].input_ids) == length
    assert not report.drops and not report.cuts
    items, report = _build(tmp_path, rows, "prompt_completion", seq_len=length - 1)
    assert not items
    assert report.drops == {"over-long: no source to shorten": 1}
    assert report.dropped_at == {"over-long: no source to shorten": [f"{tmp_path}/train.jsonl:1"]}


def test_passages_are_shortened_from_the_last_and_all_else_is_kept(tmp_path):
    row = _qa("Where is it?", "there", "A" * 30, "B" * 30, "C" * 30)
    framing = FRAME + len("Question: Where is it?\n\n") + len("there")
    # Room for the first passage and ten letters of the second, with "[1] ", "\n" and "[2] ".
    seq_len = framing + 4 + 30 + 1 + 4 + 10
    items, report = _build(tmp_path, [row], seq_len=seq_len)
    text = decode(TOKENIZER, items[0].input_ids)
    assert text == (
        "<|im_start|>user\nQuestion: Where is it?\n\n[1] " + "A" * 30 + "\n[2] " + "B" * 10
        + "<|im_end|>\n<|im_start|>assistant\nthere<|im_end|>\n"
    )  # fmt: skip
    assert sum(items[0].loss_weights) == len("there") + 1
    assert report.cuts == {"source shortened": 1} and not report.drops
    assert report.cut_at == {"source shortened": [f"{tmp_path}/train.jsonl:1"]}


@pytest.mark.parametrize(
    ("task", "row", "kept"),
    [
        ("summarization", {"document": "D" * 90, "summary": "sum"}, "Summarize:\n\nDD"),
        ("planning", {"request": "do", "plan": "p", "context": "C" * 90}, "Plan: do\n\nCC"),
        ("instruction", {"instruction": "ins", "response": "r", "input": "I" * 90}, "ins\n\nII"),
    ],
)
def test_the_end_of_the_source_is_cut_in_other_tasks(tmp_path, task, row, kept):
    answer = row.get("summary") or row.get("plan") or row["response"]
    seq_len = FRAME + len(kept) + len(answer)
    items, report = _build(tmp_path, [row], task, seq_len=seq_len)
    assert decode(TOKENIZER, items[0].input_ids) == (
        f"<|im_start|>user\n{kept}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
    )
    assert report.cuts == {"source shortened": 1}
    items, report = _build(tmp_path, [row], task, seq_len=seq_len - 2)
    assert not items
    assert report.drops == {"over-long: does not fit even without its source": 1}


def test_what_does_not_fit_without_its_source_is_dropped_never_its_target(tmp_path):
    rows = [_qa("q", "long answer " * 20, "p" * 10), _qa("q", "a", "p")]
    items, report = _build(tmp_path, rows, seq_len=64)
    assert [item.record_id for item in items] == [1]
    assert report.drops == {"over-long: does not fit even without its source": 1}


def test_over_long_drop_and_error(tmp_path):
    rows = [_qa("q", "a", "p" * 100), _qa("q", "a", "p")]
    items, report = _build(tmp_path, rows, seq_len=64, on_over_long="drop")
    assert [item.record_id for item in items] == [1]
    assert report.drops == {"over-long": 1}
    length = FRAME + len("Question: q\n\n[1] ") + 100 + 1
    with pytest.raises(RunError, match=rf"train\.jsonl:1: {length} tokens .* seq_len=64"):
        _build(tmp_path, rows, seq_len=64, on_over_long="error")


@pytest.mark.parametrize(
    ("length", "pieces"),
    [(59, [59]), (60, [60]), (61, [59, 2]), (62, [60, 2]), (121, [60, 59, 2]),
     (181, [60, 60, 59, 2])],
)  # fmt: skip
def test_texts_become_consecutive_pieces(tmp_path, length, pieces):
    text = "".join(chr(ord("a") + i % 26) for i in range(length - 1))  # and EOS
    items, report = _build(tmp_path, [{"text": text}], "text", seq_len=60)
    assert [len(item.input_ids) for item in items] == pieces
    joined = [token for item in items for token in item.input_ids]
    assert decode(TOKENIZER, joined) == text + "<eos>"
    # Every token is predicted but the first of each piece.
    assert sum(sum(item.loss_weights) for item in items) == length - len(pieces)
    assert all(item.loss_weights[-1] == 0 for item in items)
    assert report.cuts == ({"text split into pieces": 1} if len(pieces) > 1 else {})


def test_records_without_trained_tokens_are_counted_with_their_place(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": "u"}]},
        {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]},
    ]
    items, report = _build(tmp_path, rows, "messages", on_bad_record="skip")
    assert [item.record_id for item in items] == [1]
    assert report.drops == {"no trained tokens": 1}
    assert report.dropped_at == {"no trained tokens": [f"{tmp_path}/train.jsonl:1"]}
    with pytest.raises(RunError, match=r"train\.jsonl:1: no assistant turn"):
        _build(tmp_path, rows, "messages")
    items, _ = _build(tmp_path, rows, "messages", loss_on="all")
    assert [item.record_id for item in items] == [0, 1]


def test_bad_records_are_listed_in_order_up_to_twenty(tmp_path):
    rows = [_qa(), *({"question": "q"} for _ in range(25))]
    with pytest.raises(RunError) as caught:
        _build(tmp_path, rows)
    lines = str(caught.value).splitlines()
    assert lines[0] == "phase one: 25 record(s) cannot be used"
    assert lines[1] == f"{tmp_path}/train.jsonl:2: answer: required, but not given"
    assert lines[20].startswith(f"{tmp_path}/train.jsonl:21: ")
    assert lines[21] == "and 5 more among the records read so far"
    assert len(lines) == 22


def test_bad_records_are_skipped_and_counted_by_reason(tmp_path):
    rows = [_qa(), {"question": "q"}, _qa("q", " "), {"question": 3, "answer": "a"}, {"q": 1}]
    items, report = _build(tmp_path, rows, on_bad_record="skip")
    assert [item.record_id for item in items] == [0]
    assert report.drops == {
        "bad record: answer: required, but not given": 1,
        "bad record: answer: must not be empty": 1,
        "bad record: question: input should be a valid string": 1,
        "bad record: question: required, but not given": 1,
    }


class TestUnstableTemplate:
    tokenizer = byte_tokenizer(THINK_STRIPPING)
    rows = (
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "<think>r</think>x"},
                {"role": "user", "content": "b"},
                {"role": "assistant", "content": "<think>s</think>y"},
            ]
        },
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "z"}]},
    )

    def test_refused_with_file_and_line(self, tmp_path):
        with pytest.raises(RunError, match=r"train\.jsonl:1: turn 1: later turns change"):
            _build(tmp_path, self.rows, "messages", self.tokenizer, seq_len=200)

    def test_skipped_and_counted(self, tmp_path):
        items, report = _build(
            tmp_path, self.rows, "messages", self.tokenizer, seq_len=200, on_bad_record="skip"
        )
        assert [item.record_id for item in items] == [1]
        assert report.drops == {"unrenderable: later turns change how this turn is rendered": 1}

    def test_split_into_single_turns(self, tmp_path):
        items, report = _build(
            tmp_path, self.rows, "messages", self.tokenizer, seq_len=200, on_unstable="split"
        )
        assert [item.record_id for item in items] == [0, 0, 1]
        assert report.cuts == {"conversation split into single turns": 1}
        trained = [
            decode(self.tokenizer, item.input_ids[1:][item.loss_weights[:-1] > 0]) for item in items
        ]
        assert trained == [
            "<think>r</think>x<|im_end|>",
            "<think>s</think>y<|im_end|>",
            "z<|im_end|>",
        ]
        # Earlier turns of the second are shown as the template shows them when served.
        assert "<|im_start|>assistant\nx<|im_end|>" in decode(self.tokenizer, items[1].input_ids)


def test_retrieval_groups(tmp_path):
    rows = [
        {"query": "q1", "positive": "Doc A", "negatives": ["n1", "n2", "n3"]},
        {"query": "q2", "positives": ["doc  a", "other"], "negatives": ["x" * 50]},
    ]
    items, report = _build(tmp_path, rows, "retrieval", seq_len=16, documents=3)
    texts = []
    for item in items:
        ends = [0]
        for length in item.seq_lens:
            ends.append(ends[-1] + length)
        texts.append([decode(TOKENIZER, item.input_ids[a:b]) for a, b in pairwise(ends)])
    assert texts == [
        ["q1<eos>", "Doc A<eos>", "n1<eos>", "n2<eos>"],
        ["q2<eos>", "doc  a<eos>", "x" * 15 + "<eos>"],
    ]
    first, second = (item.document_ids for item in items)
    assert (first[0], second[0]) == (document_id("Q1"), document_id("Q2"))
    assert first[1] == second[1] == document_id("DOC A") > 0  # equal up to normalisation
    assert len({*first, *second}) == 6
    assert all(not item.loss_weights.any() for item in items)
    assert +report.cuts == {
        "retrieval document beyond the group": 2,
        "retrieval text shortened": 1,
    }


def test_a_negative_equal_to_the_positive_is_reported(tmp_path):
    rows = [{"query": "q", "positive": "Doc", "negatives": ["doc"]}]
    with pytest.raises(RunError, match=r"train\.jsonl:1: negatives\[0\]='doc'"):
        _build(tmp_path, rows, "retrieval")


def test_unescaped_line_marks_reach_the_tokenizer(tmp_path):
    text = "a\u2028b\u2029c\u0085d"
    (tmp_path / "train.jsonl").write_text(
        json.dumps({"text": text}, ensure_ascii=False) + "\r\n", encoding="utf-8"
    )
    config = config_for(tmp_path)
    items, _ = build(
        Source([tmp_path / "train.jsonl"], tmp_path),
        [0],
        "one",
        config.plan.phases["one"],
        TOKENIZER,
    )
    assert decode(TOKENIZER, items[0].input_ids) == text + "<eos>"


@pytest.mark.parametrize("room", [3, 4, 5, 6, 20, 89])
def test_a_cut_never_splits_a_character(tmp_path, room):
    row = {"document": "€" * 30, "summary": "s"}  # three tokens each
    seq_len = FRAME + len("Summarize:\n\n") + 1 + room
    items, _ = _build(tmp_path, [row], "summarization", seq_len=seq_len)
    text = decode(TOKENIZER, items[0].input_ids)
    assert text.count("€") == room // 3 and "\ufffd" not in text
