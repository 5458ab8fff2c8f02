"""Sets that others wrote are read, and others read what is written."""

import errno
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from packed_choice_builders import (
    EVALUATION,
    SEQ_LEN,
    TRAINING,
    VOCAB,
    eval_bins,
    plain,
    read_rows,
    training_bins,
    write_evaluation,
    write_training,
)

from curriculum.data.packed_choice import (
    BadSet,
    Bin,
    is_packed,
    open_eval,
    open_packed,
    read_manifest,
    read_targets,
    write_eval,
    write_packed,
)
from curriculum.errors import RunError

WIDE = {
    "input_ids": pa.large_list(pa.int64()),
    "seq_lens": pa.list_(pa.uint8()),
    "positions": pa.large_list(pa.int16()),
    "choice_ids": pa.large_list(pa.large_list(pa.int64())),
    "target_probs": pa.list_(pa.large_list(pa.float64())),
    "weights": pa.list_(pa.float16()),
    "observed_ids": pa.list_(pa.int64()),
    "mix_weights": pa.large_list(pa.list_(pa.float64())),
}


@pytest.mark.parametrize("types", [TRAINING, WIDE], ids=["as the format says", "wider"])
@pytest.mark.parametrize("per_batch", [None, 1])
def test_a_training_set_of_others_is_read_bin_by_bin(tmp_path, types, per_batch):
    path = write_training(tmp_path / "set", types=types, per_batch=per_batch, note="kept")
    bins = open_packed(path, vocab_size=VOCAB, seq_len=SEQ_LEN, split="train")
    assert len(bins) == 4 and [plain(one) for one in bins] == training_bins()
    assert bins.tokens.tolist() == [10, 12, 3, 10] and bins.rows.tolist() == [2, 1, 0, 3]
    assert bins.weighted.tolist() == [2, 0, 0, 3]
    assert bins.manifest.mix_components == ("facts", "taste")
    first, empty = bins[0], bins[2]
    kinds = {name: getattr(first, name).dtype for name in vars(first) if name != "row_ids"}
    floats = {"target_probs", "weights", "mix_weights"}
    assert {n for n, kind in kinds.items() if kind == np.float32} == floats
    assert all(kind == np.int32 for n, kind in kinds.items() if n not in floats)
    assert empty.mix_weights.shape == (0, 2) and first.mix_weights.shape == (2, 2)
    first.input_ids[0] = 49  # a bin is nobody else's
    assert bins[0].input_ids[0] == 10
    with pytest.raises(IndexError):
        bins[4]


def test_columns_may_be_more_fewer_and_in_another_order(tmp_path):
    types = {"note": pa.string(), **dict(reversed(TRAINING.items()))}
    del types["observed_ids"]
    rows = [{**one, "note": "x"} for one in training_bins()]
    path = write_training(tmp_path / "set", rows, types=types)
    expected = [{k: v for k, v in r.items() if k != "observed_ids"} for r in training_bins()]
    bins = open_packed(path, vocab_size=VOCAB)
    assert [plain(one) for one in bins] == expected and bins[0].observed_ids is None


def test_no_mixture_is_a_width_of_nothing(tmp_path):
    rows = [{**one, "mix_weights": [[]] * len(one["positions"])} for one in training_bins()]
    bins = open_packed(write_training(tmp_path / "s", rows, mix_components=[]), vocab_size=VOCAB)
    assert [one.mix_weights.shape for one in bins] == [(2, 0), (1, 0), (0, 0), (3, 0)]


def test_lists_that_do_not_begin_at_zero_are_read(tmp_path):
    """Arrow allows values before the first list and behind the last one."""
    path = write_training(tmp_path / "set", training_bins()[:2])
    rows = training_bins()[:2]
    flat = [n for one in rows for n in one["input_ids"]]
    inner = [c for one in rows for c in one["choice_ids"]]
    ids = pa.ListArray.from_arrays(pa.array([3, 13, 25], pa.int32()),
                                   pa.array([-1] * 3 + flat + [-1], pa.int32()))  # fmt: skip
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 4, 7, 11, 13], pa.int32()),
        pa.array([-9, -9, *[n for c in inner for n in c], -9, -9], pa.int32()),
    )
    nested = pa.ListArray.from_arrays(pa.array([1, 3, 4], pa.int32()), lists)
    with pa.ipc.open_file(path / "bins-00000.arrow") as reader:
        table = reader.read_all()
    table = table.set_column(table.schema.get_field_index("input_ids"), "input_ids", ids)
    table = table.set_column(table.schema.get_field_index("choice_ids"), "choice_ids", nested)
    with pa.ipc.new_file(path / "bins-00000.arrow", table.schema) as writer:
        writer.write_table(table)
    assert [plain(one) for one in open_packed(path, vocab_size=VOCAB)] == rows


def test_compressed_files_are_read(tmp_path):
    path = write_training(tmp_path / "set")
    for file in path.glob("*.arrow"):
        with pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
    assert [plain(one) for one in open_packed(path, vocab_size=VOCAB)] == training_bins()


def test_an_evaluation_set_of_others_is_read(tmp_path):
    bins = open_eval(write_evaluation(tmp_path / "set", source={"kind": "quiz"}), vocab_size=VOCAB)
    assert [plain(one) for one in bins] == eval_bins()
    assert bins.manifest.num_rows == 6 and bins.manifest.source == {"kind": "quiz"}
    one = bins[0]
    assert one.row_ids.dtype == np.int64
    assert len(one.target_probs) == len(one.weights) == 0 and one.mix_weights.shape == (2, 0)


def test_what_is_written_is_read_by_others(tmp_path):
    bins = list(open_packed(write_training(tmp_path / "given"), vocab_size=VOCAB))
    made = write_packed(
        tmp_path / "new", iter(bins), split="val", seq_len=SEQ_LEN,
        mix_components=["facts", "taste"], source={"by": "test"}, bins_per_file=3,
    )  # fmt: skip
    assert read_rows(tmp_path / "new") == training_bins()
    with pa.ipc.open_file(tmp_path / "new" / "bins-00000.arrow") as reader:
        assert {f.name: f.type for f in reader.schema} == TRAINING
    assert json.loads((tmp_path / "new" / "manifest.json").read_text()) == {
        "schema_version": "simile-packed-choice/v2",
        "split": "val",
        "seq_len": 12,
        "num_bins": 4,
        "num_examples": 6,
        "num_tokens": 35,
        "max_choices": 4,
        "mix_components": ["facts", "taste"],
        "files": [
            {"name": "bins-00000.arrow", "num_bins": 3},
            {"name": "bins-00001.arrow", "num_bins": 1},
        ],
        "source": {"by": "test"},
    }
    assert read_manifest(tmp_path / "new") == made
    assert [plain(b) for b in open_packed(tmp_path / "new", vocab_size=VOCAB)] == training_bins()


def test_an_evaluation_set_is_written_with_its_targets(tmp_path):
    bins = list(open_eval(write_evaluation(tmp_path / "given"), vocab_size=VOCAB))
    targets = [np.full(n, 1 / n, np.float32) for n in (3, 1, 2, 4, 2, 2)]
    write_eval(tmp_path / "new", bins, name="quiz", seq_len=SEQ_LEN, targets=targets)
    assert read_rows(tmp_path / "new") == eval_bins()
    with pa.ipc.open_file(tmp_path / "new" / "bins-00000.arrow") as reader:
        assert {f.name: f.type for f in reader.schema} == EVALUATION
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert manifest["num_rows"] == 6 and manifest["name"] == "quiz" and "source" not in manifest
    with pa.ipc.open_file(tmp_path / "new" / "targets.arrow") as reader:
        table = reader.read_all()
    assert table.schema == pa.schema({"row_id": pa.int64(), "target_probs": pa.list_(pa.float32())})
    assert table["row_id"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert table["target_probs"].to_pylist() == [one.tolist() for one in targets]
    counts = np.array([3, 1, 2, 4, 2, 2])
    found = read_targets(tmp_path / "new" / "targets.arrow", counts)
    assert found.dtype == np.float32 and found.tolist() == np.concatenate(targets).tolist()
    targets[1] = np.array([100.0], np.float32)
    with pytest.raises(BadSet, match=r"targets\.arrow: row_id=1: target_probs sum to 100"):
        write_eval(tmp_path / "bad", bins, name="quiz", seq_len=SEQ_LEN, targets=targets)
    assert list((tmp_path / "bad").iterdir()) == []


def test_without_a_mixture_a_set_is_of_one_component(tmp_path):
    """Other readers of the format want at least one."""
    rows = [{**one, "mix_weights": [[]] * len(one["positions"])} for one in training_bins()]
    given = write_training(tmp_path / "given", rows, mix_components=[])
    bins = list(open_packed(given, vocab_size=VOCAB))
    write_packed(tmp_path / "new", bins, split="train", seq_len=SEQ_LEN)
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert manifest["mix_components"] == ["all"]
    found = [one["mix_weights"] for one in read_rows(tmp_path / "new")]
    assert found == [[[1.0]] * 2, [[1.0]], [], [[1.0]] * 3]
    again = open_packed(tmp_path / "new", vocab_size=VOCAB)
    assert [one.mix_weights.shape for one in again] == [(2, 1), (1, 1), (0, 1), (3, 1)]
    mixed = list(open_packed(write_training(tmp_path / "mixed"), vocab_size=VOCAB))
    with pytest.raises(RunError, match=r"mix_components=\[\]: a bin has 2 mix_weights a row"):
        write_packed(tmp_path / "other", mixed, split="train", seq_len=SEQ_LEN)


@pytest.mark.parametrize("name", ["bins-00007.arrow", "targets.arrow"])
def test_files_that_would_be_taken_for_parts_of_a_set_are_left_alone(tmp_path, name):
    bins = list(open_packed(write_training(tmp_path / "given"), vocab_size=VOCAB))
    settings = {"split": "train", "seq_len": SEQ_LEN, "mix_components": ["facts", "taste"]}
    here = tmp_path / "here"
    here.mkdir()
    (here / name).write_text("precious")
    (here / "bins-old.arrow").write_text("precious, too")
    with pytest.raises(RunError, match=rf"here: holds {name}, but no manifest\.json: left by a"):
        write_packed(here, bins, **settings)
    assert (here / name).read_text() == "precious"
    write_packed(here, bins, **settings, overwrite=True)
    assert {path.name for path in here.iterdir()} == {
        *("manifest.json", "bins-00000.arrow", "bins-old.arrow")
    }


def test_a_set_that_lies_there_stays_until_it_may_be_replaced(tmp_path):
    bins = list(open_packed(write_training(tmp_path / "set"), vocab_size=VOCAB))
    settings = {"split": "train", "seq_len": SEQ_LEN, "mix_components": ["facts", "taste"]}
    with pytest.raises(RunError, match="holds a packed set already"):
        write_packed(tmp_path / "set", bins, **settings)
    assert read_rows(tmp_path / "set") == training_bins()
    write_packed(tmp_path / "set", bins[:1], **settings, overwrite=True)
    assert read_rows(tmp_path / "set") == training_bins()[:1]
    assert {p.name for p in (tmp_path / "set").iterdir()} == {"bins-00000.arrow", "manifest.json"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"schema_version": "mine"}')
    with pytest.raises(RunError, match="something else"):
        write_packed(tmp_path / "other", bins, **settings, overwrite=True)


def test_a_set_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    """As on a read-only file system, which stops root, too."""
    bins = list(open_packed(write_training(tmp_path / "set"), vocab_size=VOCAB))

    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    settings = {"split": "train", "seq_len": SEQ_LEN, "mix_components": ["facts", "taste"]}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        with pytest.raises(RunError, match=r"manifest\.json: cannot be replaced: Read-only file"):
            write_packed(tmp_path / "set", bins[:1], **settings, overwrite=True)
    assert read_rows(tmp_path / "set") == training_bins()


def test_what_fails_leaves_no_set_behind(tmp_path):
    bins = list(open_packed(write_training(tmp_path / "given"), vocab_size=VOCAB))

    def breaks():
        yield from bins
        raise KeyboardInterrupt

    settings = {"split": "train", "seq_len": SEQ_LEN, "mix_components": ["facts", "taste"]}
    with pytest.raises(KeyboardInterrupt):
        write_packed(tmp_path / "new", breaks(), **settings, bins_per_file=1)
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(RunError, match="no bin to write"):
        write_packed(tmp_path / "new", [], **settings)
    with pytest.raises(BadSet, match=r"bins-00000\.arrow: bin 1: has 12 tokens; 1 to seq_len=11"):
        write_packed(tmp_path / "new", bins, **settings | {"seq_len": 11})
    with pytest.raises(BadSet, match="bin 0, row 0: has 2 mix_weights for 3 mix_components"):
        write_packed(tmp_path / "new", bins, **settings | {"mix_components": ["a", "b", "c"]})
    one = bins[0]
    wrong = Bin(**vars(one) | {"choice_counts": np.array([2, 2], np.int32)})
    with pytest.raises(BadSet, match="bin 0: choice_ids has 5 values for 4 choices"):
        write_packed(tmp_path / "new", [wrong], **settings)
    with pytest.raises(BadSet, match="needs row_ids"):
        write_eval(tmp_path / "new", bins, name="x", seq_len=SEQ_LEN)
    assert list((tmp_path / "new").iterdir()) == [] and not is_packed(tmp_path / "new")


def test_which_directories_are_packed_sets(tmp_path):
    assert is_packed(write_training(tmp_path / "a")) and is_packed(write_evaluation(tmp_path / "b"))
    assert is_packed(write_training(tmp_path / "c", schema_version="simile-packed-choice/v9"))
    (tmp_path / "d").mkdir()
    for text in ("[]", "{", '{"schema_version": "windows/v2"}', "null"):
        (tmp_path / "d" / "manifest.json").write_text(text)
        assert not is_packed(tmp_path / "d")
    assert not is_packed(tmp_path / "none") and not is_packed(tmp_path / "a" / "manifest.json")


def test_a_checked_set_is_opened_again_without_a_check(tmp_path, monkeypatch):
    path, cache = write_training(tmp_path / "set"), tmp_path / "cache"
    open_packed(path, vocab_size=VOCAB, cache_dir=cache)
    checked = []
    monkeypatch.setattr(
        "curriculum.data.packed_choice.reader.check", lambda *args: checked.append(args)
    )
    bins = open_packed(path, vocab_size=None, cache_dir=cache)
    assert not checked and [plain(one) for one in bins] == training_bins()
    rows = training_bins()
    rows[0]["weights"] = [3.0, 3.0]
    write_training(path, rows)
    open_packed(path, vocab_size=VOCAB, cache_dir=cache)
    assert len(checked) >= 1


def test_a_smaller_vocabulary_is_checked_again(tmp_path):
    path, cache = write_training(tmp_path / "set"), tmp_path / "cache"
    open_packed(path, vocab_size=47, cache_dir=cache)
    with pytest.raises(BadSet, match=r"bin 1 \(3 of the set\): input_ids=46: the vocabulary has"):
        open_packed(path, vocab_size=46, cache_dir=cache)


def test_reading_needs_no_torch(tmp_path):
    write_training(tmp_path / "set")
    from subprocess import run

    code = (
        "import sys; from curriculum.data.packed_choice import open_packed; "
        f"open_packed({str(tmp_path / 'set')!r}, vocab_size=50)[0]; "
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    assert run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_offsets_that_do_not_begin_at_zero_are_counted_from_it():
    """pyarrow moves them when it writes; other writers need not."""
    from curriculum.data.packed_choice.arrow import _from_zero

    values, inner = np.arange(20), np.array([0, 2, 4, 7, 11, 13])
    flat = _from_zero(values, np.array([3, 5, 9]))
    assert [flat.of(0).tolist(), flat.of(1).tolist()] == [[3, 4], [5, 6, 7, 8]]
    nested = _from_zero(values, np.array([1, 3, 4]), inner)
    assert [nested.of(0).tolist(), nested.of(1).tolist()] == [[2, 3, 4, 5, 6], [7, 8, 9, 10]]
    assert [nested.counts_of(0).tolist(), nested.counts_of(1).tolist()] == [[2, 3], [4]]
