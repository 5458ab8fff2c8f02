"""Every way in which a set can be malformed is refused, with file, bin, row and rule."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from packed_choice_builders import (
    EVALUATION,
    SEQ_LEN,
    TRAINING,
    VOCAB,
    Row,
    eval_bins,
    training_bins,
    write_evaluation,
    write_training,
)

from curriculum.data.packed_choice import BadSet, open_eval, open_packed
from curriculum.errors import RunError

NAN, INF = float("nan"), float("inf")


def put(name: str, value: Any, *path: int) -> Callable[[Row], None]:
    """A change of a bin: a column, or what lies at `path` in it, becomes `value`."""

    def change(row: Row) -> None:
        if not path:
            row[name] = value
            return
        place = row[name]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


# What is changed of the last bin (10 tokens, seq_lens 6 and 4, positions 1, 4 and 8; bin 1 of the
# second file), the row that is to be named, and words of the rule.
TRAINING_KINDS: dict[str, tuple[Callable[[Row], None], int | None, str]] = {
    "no tokens": (lambda r: r.update({n: [] for n in TRAINING}), None, "has 0 tokens"),
    "longer than seq_len": (
        lambda r: r.update(input_ids=[1] * 13, seq_lens=[6, 7]),
        None,
        "has 13 tokens; 1 to seq_len=12",
    ),
    "seq_lens sum to less": (put("seq_lens", [6, 3]), None, "seq_lens sum to 9, but .* 10 tokens"),
    "seq_lens sum to more": (put("seq_lens", [6, 5]), None, "seq_lens sum to 11, but"),
    "no seq_lens": (put("seq_lens", []), None, "seq_lens sum to 0"),
    "an empty segment": (put("seq_lens", [6, 0, 4]), None, "seq_lens=0: a segment has 1 to"),
    "a negative segment": (put("seq_lens", [6, -1, 5]), None, "seq_lens=-1: a segment has 1 to"),
    "a negative token": (put("input_ids", -1, 7), None, "input_ids=-1: a token id is at least 0"),
    "a token beyond the vocabulary": (
        put("input_ids", 50, 7),
        None,
        "input_ids=50: the vocabulary has 50 tokens",
    ),
    "fewer choices than positions": (
        lambda r: r["choice_ids"].pop(),
        None,
        "choice_ids has 2 entries for 3 positions",
    ),
    "fewer targets than positions": (
        lambda r: r["target_probs"].pop(),
        None,
        "target_probs has 2 entries for 3 positions",
    ),
    "fewer weights than positions": (
        lambda r: r["weights"].pop(),
        None,
        "weights has 2 entries for 3 positions",
    ),
    "more mix_weights than positions": (
        lambda r: r["mix_weights"].append([0.5, 0.5]),
        None,
        "mix_weights has 4 entries for 3 positions",
    ),
    "fewer observed_ids than positions": (
        lambda r: r["observed_ids"].pop(),
        None,
        "observed_ids has 2 entries for 3 positions",
    ),
    "a negative position": (put("positions", -1, 0), 0, "positions=-1: the bin has positions 0"),
    "a position beyond the bin": (put("positions", 10, 2), 2, "positions=10: the bin has .* 9"),
    "positions fall": (put("positions", [4, 1, 8]), 1, "positions=1 after 4: .* increase"),
    "a position twice": (put("positions", [1, 1, 8]), 1, "positions=1 after 1: .* increase"),
    "the answer is in the next segment": (
        put("positions", 5, 1),
        1,
        "positions=5: the answer, .* outside of the segment",
    ),
    "the answer is beyond the bin": (put("positions", 9, 2), 2, "positions=9: the answer"),
    "a row without choices": (
        lambda r: r.update(
            choice_ids=[[6, 7], [], [9]], target_probs=[[1.0, 0.0], [], [1.0]]
        ),
        1,
        "has 0 choices; 1 to max_choices=4",
    ),
    "more choices than max_choices": (
        put("choice_ids", [1, 2, 3, 4, 5], 2),
        2,
        "has 5 choices; 1 to max_choices=4",
    ),
    "a choice twice": (put("choice_ids", 8, 1, 2), 1, "choice_ids=8: a choice is given twice"),
    "a negative choice": (put("choice_ids", -1, 1, 2), 1, "choice_ids=-1: a token id is at"),
    "a choice beyond the vocabulary": (
        put("choice_ids", 50, 1, 2),
        1,
        "choice_ids=50: the vocabulary has 50",
    ),
    "fewer targets than choices": (
        put("target_probs", [0.5, 0.5], 1),
        1,
        "has 2 target_probs for 3 choices",
    ),
    "targets sum to less than 1": (
        put("target_probs", [0.25, 0.25, 0.25], 1),
        1,
        "target_probs sum to 0.75; they sum to 1 within",
    ),
    "targets sum to more than 1": (
        put("target_probs", [0.5, 0.501], 0),
        0,
        "target_probs sum to 1.001; they sum to 1",
    ),
    "a negative target": (
        put("target_probs", [-0.5, 1.0, 0.5], 1),
        1,
        "target_probs=-0.5: must be finite and at least 0",
    ),
    "a target that is NaN": (put("target_probs", NAN, 1, 1), 1, "target_probs=nan: must be"),
    "an infinite target": (put("target_probs", INF, 1, 1), 1, "target_probs=inf: must be"),
    "a negative weight": (put("weights", -0.5, 1), 1, "weights=-0.5: must be finite"),
    "a weight that is NaN": (put("weights", NAN, 2), 2, "weights=nan: must be finite"),
    "an infinite weight": (put("weights", INF, 2), 2, "weights=inf: must be finite"),
    "too few mix_weights": (put("mix_weights", [1.0], 2), 2, "has 1 mix_weights for 2 mix_comp"),
    "too many mix_weights": (put("mix_weights", [1.0, 0, 0], 0), 0, "has 3 mix_weights for 2"),
    "a negative mix_weight": (put("mix_weights", [2.0, -1.0], 0), 0, "mix_weights=-1: must be"),
    "a mix_weight that is NaN": (put("mix_weights", [1.0, NAN], 0), 0, "mix_weights=nan: must"),
    "an observed id beyond the vocabulary": (
        put("observed_ids", 50, 1),
        1,
        "observed_ids=50: the vocabulary has",
    ),
    "an observed id below 0": (put("observed_ids", -1, 0), 0, "observed_ids=-1: a token id"),
    "a null in a list": (put("positions", None, 1), None, "column positions holds a null"),
    "a null in a list of lists": (
        put("target_probs", None, 1, 1),
        None,
        "column target_probs holds a null",
    ),
    "a null for a row": (put("choice_ids", None, 1), None, "column choice_ids holds a null"),
    "a null for a column": (put("weights", None), None, "column weights holds a null"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TRAINING_KINDS)
def test_a_malformed_training_bin_is_refused(tmp_path: Path, kind: str) -> None:
    change, row, rule = TRAINING_KINDS[kind]
    rows = training_bins()
    change(rows[3])
    path = write_training(tmp_path / "set", rows)
    with pytest.raises(BadSet, match=rule) as caught:
        open_packed(path, vocab_size=VOCAB)
    error = caught.value
    assert (error.file, error.bin, error.row) == (path / "bins-00001.arrow", 1, row)
    place = f"{path}/bins-00001.arrow: bin 1 (3 of the set)"
    assert str(error).startswith(f"{place}{'' if row is None else f', row {row}'}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", TRAINING_KINDS)
def test_it_is_refused_in_a_batch_of_its_own_and_after_a_good_check(tmp_path, kind) -> None:
    change, row, rule = TRAINING_KINDS[kind]
    rows, cache = training_bins(), tmp_path / "cache"
    open_packed(write_training(tmp_path / "set", rows), vocab_size=VOCAB, cache_dir=cache)
    change(rows[3])
    path = write_training(tmp_path / "set", rows, per_file=4, per_batch=1)
    with pytest.raises(BadSet, match=rule) as caught:
        open_packed(path, vocab_size=VOCAB, cache_dir=cache)
    assert (caught.value.file.name, caught.value.bin) == ("bins-00000.arrow", 3)
    assert caught.value.row == row and "of the set" not in str(caught.value)
    with pytest.raises(BadSet, match=rule):  # and not remembered as checked
        open_packed(path, vocab_size=VOCAB, cache_dir=cache)


# Of the last bin of the evaluation set: 5 tokens, positions 2 and 4, row_ids 2 and 3.
EVALUATION_KINDS: dict[str, tuple[Callable[[Row], None], int | None, str]] = {
    "a row id twice in a bin": (put("row_ids", [2, 2]), 1, "row_ids=2: given before"),
    "a row id twice in a set": (put("row_ids", [5, 3]), 0, "row_ids=5: given before"),
    "a row id beyond num_rows": (put("row_ids", [2, 6]), 1, "row_ids=6: .* rows 0 to 5"),
    "a negative row id": (put("row_ids", [-1, 3]), 0, "row_ids=-1: the set has rows 0 to 5"),
    "fewer row ids than positions": (put("row_ids", [2]), None, "row_ids has 1 entries for 2"),
    "no row": (
        lambda r: r.update(positions=[], choice_ids=[], row_ids=[]),
        None,
        "has no row; a bin of an evaluation set",
    ),
    "a position beyond the bin": (put("positions", [2, 5]), 1, "positions=5: the bin has"),
    "a choice twice": (put("choice_ids", 8, 1, 3), 1, "choice_ids=8: a choice is given twice"),
    "too many choices": (put("choice_ids", [1, 2, 3, 4, 5], 0), 0, "has 5 choices; 1 to"),
}


@pytest.mark.parametrize("kind", EVALUATION_KINDS)
def test_a_malformed_evaluation_bin_is_refused(tmp_path: Path, kind: str) -> None:
    change, row, rule = EVALUATION_KINDS[kind]
    rows = eval_bins()
    change(rows[3])
    path = write_evaluation(tmp_path / "set", rows, num_rows=6)
    with pytest.raises(BadSet, match=rule) as caught:
        open_eval(path, vocab_size=VOCAB)
    error = caught.value
    assert (error.file, error.bin, error.row) == (path / "bins-00001.arrow", 1, row)


def test_a_row_that_is_missing_is_named(tmp_path: Path) -> None:
    rows = eval_bins()
    rows[3]["row_ids"] = [2, 6]
    path = write_evaluation(tmp_path / "set", rows, num_rows=7)
    with pytest.raises(BadSet, match=r"num_rows=7, but the bins hold 6; row_ids=3 is missing"):
        open_eval(path, vocab_size=VOCAB)


MANIFEST_KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "another version": (
        {"schema_version": "simile-packed-choice/v1"},
        "schema_version='simile-packed-choice/v1' is not one that can be read: .*/v2",
    ),
    "no version": ({"schema_version": None}, "schema_version=None is not one that can be read"),
    "an evaluation set": (
        {"schema_version": "simile-packed-choice-eval/v1", "name": "x", "num_rows": 6},
        "schema_version='simile-packed-choice-eval/v1'; simile-packed-choice/v2 is needed",
    ),
    "an unknown split": ({"split": "test"}, 'split="test": must be one of train, val'),
    "another split": ({"split": "val"}, "split='val'; 'train' is needed here"),
    "longer bins": ({"seq_len": 13}, "seq_len=13: its bins do not fit the seq_len=12 asked for"),
    "no seq_len": ({"seq_len": None}, "seq_len: required, but not given"),
    "a seq_len of 0": ({"seq_len": 0}, "seq_len=0: must be a whole number of at least 1"),
    "a seq_len that is a text": ({"seq_len": "12"}, 'seq_len="12": must be a whole number'),
    "a seq_len that is true": ({"seq_len": True}, "seq_len=true: must be a whole number"),
    "no bins": ({"num_bins": 0}, "num_bins=0: must be a whole number of at least 1"),
    "another number of bins": ({"num_bins": 5}, "num_bins=5: must be the sum over files, .* 4"),
    "another number of tokens": ({"num_tokens": 34}, "num_tokens=34, but the bins hold 35"),
    "another number of rows": ({"num_examples": 5}, "num_examples=5, but the bins hold 6 rows in"),
    "no max_choices": ({"max_choices": None}, "max_choices: required, but not given"),
    "a component twice": ({"mix_components": ["a", "a"]}, "names one component twice"),
    "components that are no list": ({"mix_components": "facts"}, "must be a list of names"),
    "no list of files": ({"files": None}, "files: required, but not given"),
    "an empty list of files": ({"files": []}, "files=.*: must be a list of at least one"),
    "a file without bins": (
        {"files": [{"name": "bins-00000.arrow", "num_bins": 0}]},
        "num_bins=0: must be a whole number of at least 1",
    ),
    "a file outside of the directory": (
        {"files": [{"name": "../bins.arrow", "num_bins": 4}]},
        r'name="\.\./bins\.arrow": must be the name of a file in the directory',
    ),
    "a file twice": (
        {"files": [{"name": "bins-00000.arrow", "num_bins": 2}] * 2},
        "files=.*: names one file twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MANIFEST_KINDS)
def test_a_malformed_manifest_is_refused(tmp_path: Path, kind: str) -> None:
    changes, rule = MANIFEST_KINDS[kind]
    path = write_training(tmp_path / "set", **changes)
    with pytest.raises(BadSet, match=rule) as caught:
        open_packed(path, vocab_size=VOCAB, seq_len=SEQ_LEN, split="train")
    assert caught.value.file == path / "manifest.json" and "\n" not in str(caught.value)


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = write_training(tmp_path / "set")
    for text, rule in (("{", "is not valid JSON"), ("[1]", "must be a JSON object")):
        (path / "manifest.json").write_text(text)
        with pytest.raises(BadSet, match=rule):
            open_packed(path, vocab_size=VOCAB)
    (path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(BadSet, match="is not valid JSON"):
        open_packed(path, vocab_size=VOCAB)
    (path / "manifest.json").write_bytes(b'{"schema_version": "\xff"}')
    with pytest.raises(BadSet, match="is not valid JSON"):
        open_packed(path, vocab_size=VOCAB)
    (path / "manifest.json").unlink()
    with pytest.raises(BadSet, match=r"manifest\.json: is missing"):
        open_packed(path, vocab_size=VOCAB)
    with pytest.raises(RunError, match="no such directory"):
        open_packed(tmp_path / "none", vocab_size=VOCAB)


def cut(part: float) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])


def as_stream(file: Path) -> None:
    with pa.ipc.open_file(file) as reader:
        table = reader.read_all()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def with_rows(count: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        rows = pa.concat_tables([table] * 2).slice(0, count)
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(rows)

    return change


def inside(file: Path) -> None:
    """Zeros where the metadata of the record batch stand."""
    data = bytearray(file.read_bytes())
    start = data.index(b"\xff\xff\xff\xff", data.index(b"\xff\xff\xff\xff") + 4)
    data[start + 8 : start + 200] = bytes(192)
    file.write_bytes(data)


FILE_KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "is missing; the manifest says 2 bins"),
    "empty": (cut(0), "is not an Arrow IPC file but empty; the manifest says 2 bins"),
    "cut in the middle": (cut(0.5), r"is truncated or damaged \(.*\); the manifest says 2 bins"),
    "cut at the end": (cut(0.99), r"is truncated or damaged \(.*\); the manifest says 2 bins"),
    "bytes behind its end": (
        lambda file: file.write_bytes(file.read_bytes() + b"more bytes"),
        "is truncated or damaged",
    ),
    "damaged inside": (inside, "is truncated or damaged"),
    "a stream": (as_stream, "is not an Arrow IPC file but an Arrow stream.*; .* 2 bins"),
    "no Arrow": (lambda file: file.write_text("{}\n"), "not an Arrow IPC file"),
    "a directory": (lambda file: (file.unlink(), file.mkdir()), "cannot be read; .* 2 bins"),
    "no rows": (with_rows(0), "holds 0 bins, but the manifest says 2 bins"),
    "fewer rows": (with_rows(1), "holds 1 bins, but the manifest says 2 bins"),
    "more rows": (with_rows(3), "holds 3 bins, but the manifest says 2 bins"),
}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_damaged_file_is_refused(tmp_path: Path, kind: str) -> None:
    change, rule = FILE_KINDS[kind]
    path = write_training(tmp_path / "set")
    change(path / "bins-00001.arrow")
    with pytest.raises(BadSet, match=rule) as caught:
        open_packed(path, vocab_size=VOCAB)
    assert caught.value.file == path / "bins-00001.arrow" and "\n" not in str(caught.value)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write_training(tmp_path / "set", per_file=4, per_batch=1)
    file = path / "bins-00000.arrow"
    data = file.read_bytes()
    for size in range(0, len(data), 16):  # the borders of its batches among them
        file.write_bytes(data[:size])
        with pytest.raises(BadSet, match="the manifest says 4 bins"):
            open_packed(path, vocab_size=VOCAB)


def test_bytes_that_change_are_refused_or_harmless_and_never_a_crash(tmp_path: Path) -> None:
    path = write_training(tmp_path / "set", per_file=4, per_batch=2)
    file, random = path / "bins-00000.arrow", Random(0)
    data, refused = file.read_bytes(), 0
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(random.choice([1, 2, 8])):
            changed[random.randrange(len(changed))] = random.randrange(256)
        file.write_bytes(changed)
        try:
            bins = open_packed(path, vocab_size=VOCAB)
        except BadSet as error:
            refused += 1
            assert error.file.parent == path
        else:
            assert all(bins[n].input_ids.max() < VOCAB for n in range(4))
    assert refused > 250


COLUMN_KINDS: dict[str, tuple[dict[str, pa.DataType | None], str]] = {
    "missing": ({"weights": None}, "column weights is missing; there are input_ids, seq_lens"),
    "numbers as texts": ({"input_ids": pa.list_(pa.string())}, r"input_ids has the type list<.*"),
    "no list": ({"seq_lens": pa.int32()}, "seq_lens has the type int32; it must be list<int32>"),
    "a flat list": (
        {"choice_ids": pa.list_(pa.int32())},
        "choice_ids has the type .*; it must be list<list<int32>>",
    ),
    "whole numbers as targets": (
        {"target_probs": pa.list_(pa.list_(pa.int32()))},
        "target_probs has the type .*; it must be list<list<float32>>",
    ),
    "fractions as tokens": (
        {"input_ids": pa.list_(pa.float32())},
        "input_ids has the type .*; it must be list<int32>",
    ),
}


def as_type(value: Any, kind: pa.DataType) -> Any:
    """Plain values in the shape and kind of a type."""
    if pa.types.is_list(kind):
        flat = value and isinstance(value[0], list) and not pa.types.is_list(kind.value_type)
        return [as_type(one, kind.value_type) for one in (chain(*value) if flat else value)]
    if isinstance(value, list):
        return 1
    return str(value) if pa.types.is_string(kind) else int(value)


@pytest.mark.parametrize("kind", COLUMN_KINDS)
def test_a_column_of_another_type_is_refused(tmp_path: Path, kind: str) -> None:
    changes, rule = COLUMN_KINDS[kind]
    types = {n: t for n, t in (TRAINING | changes).items() if t is not None}
    rows = training_bins()
    for row in rows:
        row.update({n: as_type(row[n], t) for n, t in changes.items() if t is not None})
    path = write_training(tmp_path / "set", rows, types=types)
    with pytest.raises(BadSet, match=rule) as caught:
        open_packed(path, vocab_size=VOCAB)
    assert caught.value.file == path / "bins-00000.arrow"


def test_a_column_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    path = write_training(tmp_path / "set")
    with pa.ipc.open_file(path / "bins-00000.arrow") as reader:
        table = reader.read_all()
    table = table.append_column("weights", table["weights"])
    with pa.ipc.new_file(path / "bins-00000.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(BadSet, match="column weights is given 2 times"):
        open_packed(path, vocab_size=VOCAB)


@pytest.mark.parametrize(("name", "value"), [("input_ids", 2**31), ("choice_ids", 2**40)])
def test_numbers_that_do_not_fit_are_refused_without_a_vocabulary(tmp_path, name, value) -> None:
    rows = training_bins()
    put(name, value, *([3] if name == "input_ids" else [1, 1]))(rows[3])
    wide = {"input_ids": pa.list_(pa.int64()), "choice_ids": pa.list_(pa.list_(pa.int64()))}
    path = write_training(tmp_path / "set", rows, types=TRAINING | wide)
    with pytest.raises(BadSet, match=f"{name}={value}: does not fit int32") as caught:
        open_packed(path, vocab_size=None)
    assert caught.value.bin == 1


def test_numbers_beyond_any_integer_type_are_refused(tmp_path: Path) -> None:
    rows = training_bins()
    rows[3]["positions"][2] = 2**64 - 1  # -1, if it were read as signed
    rows[3]["input_ids"][3] = 2**63
    types = TRAINING | {name: pa.list_(pa.uint64()) for name in ("positions", "input_ids")}
    path = write_training(tmp_path / "set", rows, types=types)
    with pytest.raises(BadSet, match=f"bin 1 .*: input_ids={2**63}: does not fit int32"):
        open_packed(path, vocab_size=None)
    rows[3]["input_ids"][3] = 3
    path = write_training(tmp_path / "set", rows, types=types)
    with pytest.raises(BadSet, match=r"bin 1 .*, row 2: positions="):
        open_packed(path, vocab_size=None)


def test_the_evaluation_reader_refuses_a_training_set(tmp_path: Path) -> None:
    path = write_training(tmp_path / "set")
    with pytest.raises(BadSet, match=r"schema_version='simile-packed-choice/v2'; .*eval/v1 is"):
        open_eval(path, vocab_size=VOCAB)
    types = {name: kind for name, kind in EVALUATION.items() if name != "row_ids"}
    with pytest.raises(BadSet, match="column row_ids is missing"):
        open_eval(write_evaluation(tmp_path / "e", types=types), vocab_size=VOCAB)
    manifest = json.loads((tmp_path / "e" / "manifest.json").read_text())
    (tmp_path / "e" / "manifest.json").write_text(json.dumps({**manifest, "name": ""}))
    with pytest.raises(BadSet, match='name="": must be a text'):
        open_eval(tmp_path / "e", vocab_size=VOCAB)
