"""One policy for records that are too long or odd, whatever the packing; nulls from any format."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_builders import CHATML, GEMMA, byte_tokenizer, config_for, decode, write_jsonl

from curriculum.data.examples import build
from curriculum.data.sources import Source
from curriculum.data.windows import prepare
from curriculum.errors import RunError, UserError

TOKENIZER = byte_tokenizer()
SIZES = (59, 60, 61, 121, 181)
# "<|im_start|>user\n" + content + "<|im_end|>\n<|im_start|>assistant\n" + answer + "<|im_end|>\n"
FRAME = (1 + 5) + (1 + 1) + (1 + 10) + (1 + 1)


def _row(task: str, size: int) -> dict:
    """A record of `size` tokens; half of what it may lose is in its source, where it has one."""
    if task == "text":
        return {"text": "t" * (size - 1)}
    if task == "retrieval":
        return {"query": "q", "positive": "p" * (size - 1)}
    if task == "prompt_completion":
        return {"prompt": "p", "completion": "c" * (size - FRAME - 1)}
    rest = size - FRAME - len("Summarize:\n\n")
    return {"summary": "target", "document": "d" * (rest - len("target"))}


def _prepared(tmp_path, task, policy, packing):
    write_jsonl(tmp_path / "train.jsonl", [_row(task, size) for size in SIZES])
    config = config_for(tmp_path, task, seq_len=60, packing=packing, on_over_long=policy)
    return prepare(config, "one", "train", TOKENIZER, None)


def _kept(windows) -> list[int]:
    return sorted(
        {int(row) for number in range(len(windows)) for row in windows[number].record_ids}
    )


@pytest.mark.parametrize(
    ("task", "policy", "kept", "drops", "cuts"),
    [
        ("summarization", "truncate_source", [0, 1, 2, 3, 4], {}, {"source shortened": 3}),
        ("summarization", "drop", [0, 1], {"over-long": 3}, {}),
        ("prompt_completion", "truncate_source", [0, 1],
         {"over-long: no source to shorten": 3}, {}),
        ("prompt_completion", "drop", [0, 1], {"over-long": 3}, {}),
        ("text", "truncate_source", [0, 1, 2, 3, 4], {}, {"text split into pieces": 3}),
        ("text", "drop", [0, 1], {"over-long": 3}, {}),
        ("retrieval", "truncate_source", [0, 1, 2, 3, 4], {}, {"retrieval text shortened": 3}),
        ("retrieval", "drop", [0, 1], {"over-long": 3}, {}),
    ],
)  # fmt: skip
def test_the_same_records_packed_and_unpacked(tmp_path, task, policy, kept, drops, cuts):
    trained = []
    for packing in ("none", "best_fit"):
        if task == "retrieval" and packing == "best_fit":
            continue
        windows = _prepared(tmp_path / packing, task, policy, packing)
        assert _kept(windows) == kept
        (chunk,) = windows.manifest.chunks
        assert (chunk.drops, chunk.cuts) == (drops, cuts)
        places = [f"{tmp_path / packing}/train.jsonl:{line}" for line in (3, 4, 5)]
        assert {reason: sorted(at) for reason, at in chunk.dropped_at.items()} == dict.fromkeys(
            drops, places
        )
        assert {reason: sorted(at) for reason, at in chunk.cut_at.items()} == dict.fromkeys(
            cuts, places
        )
        trained.append(chunk.trained_tokens)
    if task == "summarization":
        assert set(trained) == {len(kept) * (len("target") + 1)}
    if task == "prompt_completion":  # all but the frame and the prompt, and the end of the turn
        assert set(trained) == {sum(size - FRAME - 1 + 1 for size in SIZES[:2])}
    if task == "text" and policy == "truncate_source":
        pieces = sum(-(-size // 60) for size in SIZES)
        assert set(trained) == {sum(SIZES) - pieces}


@pytest.mark.parametrize("task", ["summarization", "prompt_completion", "text", "retrieval"])
def test_too_long_as_an_error_names_the_records(tmp_path, task):
    with pytest.raises(RunError) as caught:
        _prepared(tmp_path, task, "error", "none")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    for line, number, size in zip(lines[1:], (3, 4, 5), SIZES[2:], strict=True):
        assert line.startswith(f"{tmp_path}/train.jsonl:{number}: {size} tokens do not fit")


def test_a_cut_never_teaches_to_stop_early(tmp_path):
    """The end of a turn is a label only behind a whole target."""
    rows = [_row("summarization", size) for size in SIZES]
    rows += [{"document": "d", "summary": "s" * 60}, {"document": "d" * 99, "summary": "s" * 99}]
    source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
    phase = config_for(tmp_path, "summarization", seq_len=60).plan.phases["one"]
    items, report = build(source, range(len(rows)), "one", phase, TOKENIZER)
    for item in items:
        labels = item.input_ids[1:][item.loss_weights[:-1] > 0]
        assert decode(TOKENIZER, labels) == "target<|im_end|>"
    assert [item.record_id for item in items] == [0, 1, 2, 3, 4]
    assert report.drops == {"over-long: does not fit even without its source": 2}
    # In texts, a piece that is not the last one has no end to learn.
    texts = Source([write_jsonl(tmp_path / "text.jsonl", [_row("text", 181)])], tmp_path)
    phase = config_for(tmp_path, "text", seq_len=60).plan.phases["one"]
    pieces, _ = build(texts, [0], "one", phase, TOKENIZER)
    ends = [TOKENIZER.eos_token_id in piece.input_ids for piece in pieces]
    assert ends == [False] * (len(pieces) - 1) + [True]


def test_odd_conversations_are_named_all_or_left_out_all(tmp_path):
    good = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}
    rows = [good] * 10
    rows[1] = {"messages": [{"role": "user", "content": "u"}, *good["messages"]]}
    rows[3] = {"messages": good["messages"][:1]}
    rows[6] = {"messages": good["messages"][1:]}
    rows[9] = {"messages": [{"role": "judge", "content": "u"}, good["messages"][1]]}
    source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
    tokenizer = byte_tokenizer(GEMMA)
    phase = config_for(tmp_path, "messages").plan.phases["one"]
    with pytest.raises(RunError) as caught:
        build(source, range(10), "one", phase, tokenizer)
    head, *lines = str(caught.value).splitlines()
    assert head == "phase one: 4 record(s) cannot be used"
    expected = ["must alternate", "no assistant turn", "begins with a system or a user", "judge"]
    for line, number, part in zip(lines, (2, 4, 7, 10), expected, strict=True):
        assert line.startswith(f"{tmp_path}/train.jsonl:{number}: ") and part in line
    phase.data.on_bad_record = "skip"
    items, report = build(source, range(10), "one", phase, tokenizer)
    assert [item.record_id for item in items] == [0, 2, 4, 5, 7, 8]
    assert report.drops.total() == 4 and len(report.drops) == 4
    config = config_for(tmp_path, "messages", on_bad_record="skip", packing="none")
    write_jsonl(tmp_path / "train.jsonl", [rows[1], rows[3], rows[6], rows[9]])
    with pytest.raises(RunError, match="no window came of the train source"):
        prepare(config, "one", "train", tokenizer, None)


BRANCHING = CHATML.replace(
    "{{ m.content }}",
    "{% if m.tool_calls is defined %}[calls {{ m.tool_calls[0].name }}]{% endif %}"
    "{% if m.name is defined %}[name {{ m.name }}]{% endif %}"
    "{% if m.reasoning_content is defined %}[thinks {{ m.reasoning_content }}]{% endif %}"
    "{% if m.content is defined %}[says]{{ m.content }}{% endif %}",
)


def test_a_template_sees_the_same_whatever_format_filled_in(tmp_path):
    rows = [
        {
            "messages": [
                {"role": "user", "content": "u", "name": "Ann"},
                {"role": "assistant", "tool_calls": [{"name": "f"}], "reasoning_content": "r"},
                {"role": "tool", "content": "t"},
                {"role": "assistant", "content": "a"},
            ],
            "meta": {"x": 1},
        },
        {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]},
    ]
    table = pa.Table.from_pylist(rows)
    assert table.to_pylist()[1]["messages"][0]["tool_calls"] is None
    pq.write_table(table, tmp_path / "rows.parquet")
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    write_jsonl(tmp_path / "plain.jsonl", rows)
    write_jsonl(tmp_path / "filled.jsonl", table.to_pylist())
    tokenizer = byte_tokenizer(BRANCHING)
    expected = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    assert [text.count("[") for text in expected] == [6, 2] and "None" not in expected[0]
    phase = config_for(tmp_path, "messages", seq_len=300, strict=False).plan.phases["one"]
    for name in ("plain.jsonl", "filled.jsonl", "rows.parquet", "rows.arrow"):
        source = Source([tmp_path / name], tmp_path / "cache")
        items, _ = build(source, [0, 1], "one", phase, tokenizer)
        assert [decode(tokenizer, item.input_ids) for item in items] == expected


def test_odd_rows_are_named_and_the_others_used(tmp_path):
    part = {"type": "text", "text": "a"}
    rows = [{"prompt": "p", "completion": "c", "meta": None} for _ in range(600)]
    rows[300]["meta"] = "x"
    rows[500] = {
        "prompt": [{"role": "user", "content": [part, part]}],
        "completion": "c",
        "meta": [["nested"], [1]],
    }
    bad = {41: {"prompt": 5}, 411: {"prompt": None}, 512: {"completion": ["x"]}}
    for row, change in bad.items():
        rows[row] = rows[0] | change
    source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
    options = {"on_bad_record": "skip"}
    phase = config_for(tmp_path, "prompt_completion", **options).plan.phases["one"]
    items, report = build(source, range(600), "one", phase, TOKENIZER)
    assert [item.record_id for item in items] == [row for row in range(600) if row not in bad]
    assert len(items[300].input_ids) == FRAME + 2
    assert decode(TOKENIZER, items[498].input_ids) == (
        "<|im_start|>user\naa<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"
    )
    places = [place for found in report.dropped_at.values() for place in found]
    assert set(places) == {f"{tmp_path}/train.jsonl:{row + 1}" for row in bad}


def test_strict_reaches_the_records(tmp_path):
    rows = [{"text": "a", "id": 1}, {"text": "b", "txt": "c"}]
    source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
    loose = config_for(tmp_path, "text").plan.phases["one"]
    assert len(build(source, [0, 1], "one", loose, TOKENIZER)[0]) == 2
    strict = config_for(tmp_path, "text", strict=True).plan.phases["one"]
    with pytest.raises(RunError, match=r"train\.jsonl:2: txt: unknown field; did you mean 'text'"):
        build(source, [0, 1], "one", strict, TOKENIZER)


def test_choices_make_no_windows(tmp_path):
    row = {"prompt": "p", "choices": ["a", "b"], "answer": 0}
    source = Source([write_jsonl(tmp_path / "train.jsonl", [row])], tmp_path)
    phase = config_for(tmp_path, "choice").plan.phases["one"]
    with pytest.raises(UserError, match=r"plan\.phases\.one\.task=choice"):
        build(source, [0], "one", phase, TOKENIZER)


def test_many_over_long_records_are_each_cut_as_late_as_possible(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"question": "q" * int(rng.integers(1, 9)), "answer": "a",
         "passages": ["p" * int(n) for n in rng.integers(1, 40, int(rng.integers(1, 6)))]}
        for _ in range(80)
    ]  # fmt: skip
    source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
    phase = config_for(tmp_path, "qa", seq_len=64).plan.phases["one"]
    items, report = build(source, range(80), "one", phase, TOKENIZER)
    assert report.cuts["source shortened"] > 40 and not report.drops
    for item in items:
        row = rows[item.record_id]
        fixed = FRAME + len("Question: ") + len(row["question"]) + 1 + 2
        sizes = [len("[1] ") + len(text) for text in row["passages"]]
        whole = fixed + sum(sizes) + len(sizes) - 1
        if whole <= 64:
            assert len(item.input_ids) == whole
            continue
        # As many whole passages as fit, and of the next one as much as there is room for.
        room, count = 64 - fixed, 0
        while sizes[count] + (count > 0) <= room:
            room -= sizes[count] + (count > 0)
            count += 1
        begun = room > len("[1] ") + (count > 0)
        assert len(item.input_ids) == (64 if begun else 64 - room)
