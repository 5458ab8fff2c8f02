"""What is in a set of windows, against an independent account of the records."""

import logging
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from data_builders import byte_tokenizer, config_for, decode, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from curriculum.data.order import permutation, window_index
from curriculum.data.windows import Window, WindowSet, prepare
from curriculum.errors import RunError, UserError

TOKENIZER = byte_tokenizer()


def _examples(window: Window) -> list[tuple[int, list[int], list[float]]]:
    """(record, ids, weights) of each example of a window, by its `seq_lens`."""
    assert window.input_ids.dtype == window.seq_lens.dtype == np.int32
    assert window.loss_weights.dtype == np.float32
    assert window.record_ids.dtype == window.document_ids.dtype == np.int64
    assert window.seq_lens.sum() == len(window.input_ids) == len(window.loss_weights)
    ends = np.cumsum(window.seq_lens)
    return [
        (int(record), window.input_ids[a:b].tolist(), window.loss_weights[a:b].tolist())
        for record, a, b in zip(window.record_ids, ends - window.seq_lens, ends, strict=True)
    ]


def _all_examples(windows: WindowSet) -> list[tuple[int, list[int], list[float]]]:
    return [example for i in range(len(windows)) for example in _examples(windows[i])]


def _expected_pieces(ids: list[int], seq_len: int) -> list[list[int]]:
    pieces = []
    while ids:
        take = seq_len if len(ids) != seq_len + 1 or seq_len < 3 else seq_len - 1
        pieces.append(ids[:take])
        ids = ids[take:]
    return [piece for piece in pieces if len(piece) > 1]


@given(
    st.lists(st.text("abc \u2028é", min_size=1, max_size=90).filter(str.strip), min_size=1,
             max_size=25),
    st.integers(2, 40),
    st.integers(1, 12),
    st.sampled_from(["auto", "none"]),
    st.sampled_from(["train", "heldout"]),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_every_token_of_every_text_once_in_order(texts, seq_len, chunk_records, packing, split):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        file = write_jsonl(root / "train.jsonl", [{"text": text} for text in texts])
        config = config_for(root, seq_len=seq_len, chunk_records=chunk_records, packing=packing,
                            heldout=[str(file)])  # fmt: skip
        windows = prepare(config, "one", split, TOKENIZER, None)
        assert windows.exhausted
        expected: Counter = Counter()
        tokens = 0
        for record, text in enumerate(texts):
            ids = [*TOKENIZER(text)["input_ids"], TOKENIZER.eos_token_id]
            for piece in _expected_pieces(ids, seq_len):
                expected[record, tuple(piece)] += 1
                tokens += len(piece)
        found = _all_examples(windows)
        assert Counter((record, tuple(ids)) for record, ids, _ in found) == expected
        for _, ids, weights in found:
            assert weights == [1.0] * (len(ids) - 1) + [0.0]
        assert all(len(windows[i].input_ids) <= seq_len for i in range(len(windows)))
        if packing == "none":
            assert all(len(windows[i].seq_lens) == 1 for i in range(len(windows)))
        assert windows.forward_tokens(len(windows)) == tokens
        assert windows.trained_tokens(len(windows)) == tokens - sum(expected.values())


@given(
    st.lists(
        st.tuples(st.text("xyz", min_size=1, max_size=30), st.text("abc", min_size=1, max_size=30)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(["auto", "none"]),
)
@settings(deadline=None, max_examples=30)
def test_packed_conversations_are_the_records_and_train_the_answers(pairs, packing):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rows = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
        write_jsonl(root / "train.jsonl", rows)
        config = config_for(root, "prompt_completion", seq_len=120, packing=packing)
        windows = prepare(config, "one", "train", TOKENIZER, None)
        found = {}
        for record, ids, weights in _all_examples(windows):
            assert record not in found
            labels = [ids[i + 1] for i, weight in enumerate(weights) if weight]
            found[record] = (decode(TOKENIZER, ids), decode(TOKENIZER, labels))
            assert weights[-1] == 0
        assert found == {
            record: (
                f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n",
                f"{answer}<|im_end|>",
            )
            for record, (prompt, answer) in enumerate(pairs)
        }
        total = sum(len(answer) + 1 for _, answer in pairs)
        assert windows.trained_tokens(len(windows)) == total


def _numbered(root: Path, count: int) -> None:
    write_jsonl(root / "train.jsonl", [{"text": "x" * (1 + i % 13)} for i in range(count)])


def test_chunks_follow_the_permutation_of_records(tmp_path):
    _numbered(tmp_path, 35)
    windows = prepare(config_for(tmp_path, chunk_records=10), "one", "train", TOKENIZER, None)
    order = permutation(35, 7, "one").tolist()
    ends = np.cumsum([chunk.windows for chunk in windows.manifest.chunks])
    for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        records = {int(r) for i in range(start, end) for r in windows[i].record_ids}
        assert records == set(order[place * 10 : place * 10 + 10])
    assert [chunk.records for chunk in windows.manifest.chunks] == [10, 10, 10, 5]


def test_windows_are_shuffled_within_a_chunk(tmp_path):
    _numbered(tmp_path, 60)
    config = config_for(tmp_path, seq_len=30, chunk_records=60)
    windows = prepare(config, "one", "train", TOKENIZER, None)
    position = {record: place for place, record in enumerate(permutation(60, 7, "one").tolist())}
    first = [min(position[int(r)] for r in windows[i].record_ids) for i in range(len(windows))]
    assert first != sorted(first)


def test_heldout_windows_keep_the_order_of_the_file(tmp_path):
    write_jsonl(tmp_path / "held.jsonl", [{"text": "x" * (1 + i * 7 % 29)} for i in range(40)])
    config = config_for(
        tmp_path, seq_len=30, chunk_records=15, heldout=[str(tmp_path / "held.jsonl")]
    )
    windows = prepare(config, "one", "heldout", TOKENIZER, None)
    first = [int(windows[i].record_ids[0]) for i in range(len(windows))]
    assert first == sorted(first)
    assert sorted(int(r) for i in range(len(windows)) for r in windows[i].record_ids) == [
        *range(40)
    ]


def test_packing_keeps_examples_and_trained_tokens(tmp_path):
    _numbered(tmp_path, 50)
    sets = [
        prepare(config_for(tmp_path, packing=packing), "one", "train", TOKENIZER, None)
        for packing in ("none", "best_fit", "auto")
    ]
    kept = [sorted(map(repr, _all_examples(windows))) for windows in sets]
    assert kept[0] == kept[1] == kept[2]
    assert len({windows.trained_tokens(len(windows)) for windows in sets}) == 1
    assert len(sets[0]) == 50 > len(sets[1])
    assert sets[1].directory == sets[2].directory != sets[0].directory


def test_token_counts_over_epochs_are_those_of_the_windows_in_order(tmp_path):
    _numbered(tmp_path, 40)
    config = config_for(tmp_path, seq_len=20, chunk_records=9)
    windows = prepare(config, "one", "train", TOKENIZER, None)
    n = len(windows)
    for count in [0, 1, 3, n - 1, n, n + 1, 2 * n, 2 * n + 5]:
        used = [windows[window_index(i, n, 7, "one")] for i in range(count)]
        assert windows.forward_tokens(count) == sum(len(w.input_ids) for w in used)
        assert windows.trained_tokens(count) == sum(int((w.loss_weights > 0).sum()) for w in used)


def test_retrieval_windows_hold_one_group_and_no_loss(tmp_path):
    rows = [
        {"query": f"q{i}", "positive": f"p{i}", "negatives": [f"n{i}", f"m{i}"][: i % 3]}
        for i in range(12)
    ]
    write_jsonl(tmp_path / "train.jsonl", rows)
    windows = prepare(config_for(tmp_path, "retrieval"), "one", "train", TOKENIZER, None)
    assert len(windows) == 12
    for i in range(12):
        window = windows[i]
        (record,) = window.record_ids
        assert len(window.seq_lens) == len(window.document_ids) == 2 + record % 3
        assert len(set(window.document_ids)) == len(window.document_ids)
        text = decode(TOKENIZER, window.input_ids)
        assert text.startswith(f"q{record}<eos>p{record}<eos>")
        assert not window.loss_weights.any()
    assert windows.trained_tokens(12) == 0
    assert windows.forward_tokens(12) == sum(int(windows[i].seq_lens.sum()) for i in range(12))


def test_drops_are_counted_over_all_chunks_and_logged(tmp_path, caplog):
    good = {"question": "q", "answer": "a"}
    rows = [good, {"question": "q"}, good, {"question": "q"}, {"question": "q", "answer": "a" * 99}]
    write_jsonl(tmp_path / "train.jsonl", rows)
    config = config_for(tmp_path, "qa", chunk_records=2, on_bad_record="skip")
    with caplog.at_level(logging.WARNING):
        windows = prepare(config, "one", "train", TOKENIZER, None)
    assert windows.drops == {
        "bad record: answer: required, but not given": 2,
        "over-long: no source to shorten": 1,
    }
    assert f"1 x over-long: no source to shorten, e.g. {tmp_path}/train.jsonl:5" in caplog.text
    assert sum(chunk.examples for chunk in windows.manifest.chunks) == 2


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("messages", {"messages": [{"role": "user", "content": "u"}]}),
        ("qa", {"question": "q", "answer": "a" * 200}),
    ],
)
@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_source_that_yields_no_window_is_an_error_every_time(tmp_path, task, row, split):
    file = write_jsonl(tmp_path / "train.jsonl", [row] * 3)
    config = config_for(tmp_path, task, heldout=[str(file)], on_bad_record="skip")
    for _ in range(2):
        with pytest.raises(RunError, match=rf"phase one: no window came of the {split} source .*3"):
            prepare(config, "one", split, TOKENIZER, None)


def test_missing_sources_and_settings_are_named(tmp_path):
    with pytest.raises(
        RunError, match=r"plan\.phases\.one\.data\.sources: no file matches .*train"
    ):
        prepare(config_for(tmp_path), "one", "train", TOKENIZER, 1)
    with pytest.raises(UserError, match=r"plan\.phases\.one\.data\.heldout: names no file"):
        prepare(config_for(tmp_path), "one", "heldout", TOKENIZER, 1)
    write_jsonl(tmp_path / "train.jsonl", [{"question": "q", "answer": "a"}])
    with pytest.raises(UserError, match=r"phase one: task=qa .*model\.chat_template"):
        prepare(config_for(tmp_path, "qa"), "one", "train", byte_tokenizer(None), 1)
    config = config_for(tmp_path, "retrieval")
    config.plan.phases["one"].retrieval = None
    with pytest.raises(UserError, match=r"plan\.phases\.one\.retrieval: required"):
        prepare(config, "one", "train", TOKENIZER, 1)


def test_causal_phases_need_no_template(tmp_path):
    _numbered(tmp_path, 5)
    assert len(prepare(config_for(tmp_path), "one", "train", byte_tokenizer(None), None)) > 0


def test_an_index_outside_is_an_error(tmp_path):
    _numbered(tmp_path, 5)
    windows = prepare(config_for(tmp_path), "one", "train", TOKENIZER, None)
    for index in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[index]


def test_preparing_and_finding_import_no_torch(tmp_path):
    _numbered(tmp_path, 30)
    byte_tokenizer().save_pretrained(tmp_path / "tok")
    write_jsonl(tmp_path / "held.jsonl", [{"question": "q", "answer": "a"}])
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import curriculum.data.windows as windows
heavy = {{"torch", "transformers", "pyarrow", "tokenizers"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from curriculum.config import Model
from curriculum.data.tokenizer import load_tokenizer, end_of_turn_ids
from data_builders import config_for
root = Path({str(tmp_path)!r})
model = {{"tokenizer": str(root / "tok")}}
config = config_for(root, "qa", sources=[str(root / "held.jsonl")], model=model)
tokenizer = load_tokenizer(config.model)
end_of_turn_ids(tokenizer)
prepared = windows.prepare(config, "one", "train", tokenizer, None)
prepared[0]
assert windows.find(config, "one", "train").exhausted
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_chunk_of_unusable_records_is_an_empty_part_of_the_set(tmp_path):
    bad, good = {"text": ""}, {"text": "abc"}
    write_jsonl(tmp_path / "held.jsonl", [good, good, bad, bad, good])
    config = config_for(
        tmp_path, chunk_records=2, heldout=[str(tmp_path / "held.jsonl")], on_bad_record="skip"
    )
    windows = prepare(config, "one", "heldout", TOKENIZER, None)
    assert [chunk.windows for chunk in windows.manifest.chunks] == [1, 0, 1]
    assert [windows[i].record_ids.tolist() for i in range(2)] == [[0, 1], [4]]
    assert [windows.forward_tokens(count) for count in range(3)] == [0, 8, 12]
