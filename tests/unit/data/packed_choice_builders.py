"""Packed choice sets as others write them: rows of plain values, by pyarrow alone."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

SEQ_LEN, VOCAB, MAX_CHOICES = 12, 50, 4
COMPONENTS = ["facts", "taste"]
Row = dict[str, Any]

INTS, FLOATS = pa.list_(pa.int32()), pa.list_(pa.float32())
TRAINING = {
    "input_ids": INTS,
    "seq_lens": INTS,
    "positions": INTS,
    "choice_ids": pa.list_(INTS),
    "target_probs": pa.list_(FLOATS),
    "weights": FLOATS,
    "observed_ids": INTS,
    "mix_weights": pa.list_(FLOATS),
}
EVALUATION = {name: TRAINING[name] for name in ("input_ids", "seq_lens", "positions", "choice_ids")}
EVALUATION = EVALUATION | {"row_ids": pa.list_(pa.int64())}


def training_bins() -> list[Row]:
    """Four bins of two rows, one row, none and three: two files of two bins."""
    return [
        {
            "input_ids": [10, 11, 12, 13, 2, 14, 20, 21, 22, 5],
            "seq_lens": [6, 4],
            "positions": [3, 8],
            "choice_ids": [[1, 2], [3, 4, 5]],
            "target_probs": [[0.25, 0.75], [0.0, 0.5, 0.5]],
            "weights": [1.0, 0.5],
            "observed_ids": [2, 5],
            "mix_weights": [[1.0, 0.0], [0.25, 0.75]],
        },
        {
            "input_ids": list(range(30, 42)),
            "seq_lens": [12],
            "positions": [0],
            "choice_ids": [[7, 8, 9, 31]],
            "target_probs": [[0.25, 0.25, 0.25, 0.25]],
            "weights": [0.0],
            "observed_ids": [31],
            "mix_weights": [[0.0, 1.0]],
        },
        {name: [] for name in TRAINING} | {"input_ids": [1, 2, 3], "seq_lens": [1, 2]},
        {
            "input_ids": [40, 41, 6, 42, 43, 8, 44, 45, 46, 9],
            "seq_lens": [6, 4],
            "positions": [1, 4, 8],
            "choice_ids": [[6, 7], [8, 7, 9], [9]],
            "target_probs": [[1.0, 0.0], [0.125, 0.375, 0.5], [1.0]],
            "weights": [1.0, 2.0, 3.0],
            "observed_ids": [6, 8, 9],
            "mix_weights": [[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]],
        },
    ]


def eval_bins() -> list[Row]:
    """Four bins with six rows, numbered out of order; every prompt ends with its position."""
    return [
        {"input_ids": [1, 2, 3, 4, 5], "seq_lens": [3, 2], "positions": [2, 4],
         "choice_ids": [[6, 7], [8, 9, 10]], "row_ids": [5, 0]},
        {"input_ids": list(range(12)), "seq_lens": [12], "positions": [11],
         "choice_ids": [[6]], "row_ids": [1]},
        {"input_ids": [1, 2], "seq_lens": [2], "positions": [1],
         "choice_ids": [[6, 7]], "row_ids": [4]},
        {"input_ids": [1, 2, 3, 4, 5], "seq_lens": [3, 2], "positions": [2, 4],
         "choice_ids": [[6, 7], [8, 9, 10, 11]], "row_ids": [2, 3]},
    ]  # fmt: skip


def write_training(
    directory: Path,
    bins: list[Row] | None = None,
    *,
    types: dict[str, pa.DataType] = TRAINING,
    per_file: int = 2,
    per_batch: int | None = None,
    **manifest: Any,
) -> Path:
    """A training set; `manifest`: what it says otherwise, None for a key that it lacks."""
    bins = training_bins() if bins is None else bins
    values = {
        "schema_version": "simile-packed-choice/v2",
        "split": "train",
        "seq_len": SEQ_LEN,
        "num_bins": len(bins),
        "num_examples": sum(len(one["positions"]) for one in bins),
        "num_tokens": sum(len(one["input_ids"]) for one in bins),
        "max_choices": MAX_CHOICES,
        "mix_components": COMPONENTS,
    }
    return write_set(directory, bins, types, values | manifest, per_file, per_batch)


def write_evaluation(
    directory: Path,
    bins: list[Row] | None = None,
    *,
    types: dict[str, pa.DataType] = EVALUATION,
    per_file: int = 2,
    **manifest: Any,
) -> Path:
    bins = eval_bins() if bins is None else bins
    values = {
        "schema_version": "simile-packed-choice-eval/v1",
        "name": "quiz",
        "seq_len": SEQ_LEN,
        "num_bins": len(bins),
        "num_rows": sum(len(one["positions"]) for one in bins),
        "max_choices": MAX_CHOICES,
    }
    return write_set(directory, bins, types, values | manifest, per_file, None)


def write_set(
    directory: Path,
    bins: list[Row],
    types: dict[str, pa.DataType],
    manifest: dict[str, Any],
    per_file: int,
    per_batch: int | None,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    schema, files = pa.schema(list(types.items())), []
    for start in range(0, len(bins), per_file):
        part = bins[start : start + per_file]
        name = f"bins-{len(files):05d}.arrow"
        table = pa.table({n: pa.array([one[n] for one in part], types[n]) for n in types}, schema)
        with pa.ipc.new_file(directory / name, schema) as writer:
            writer.write_table(table, max_chunksize=per_batch)
        files.append({"name": name, "num_bins": len(part)})
    values = {"files": files} | manifest
    given = {key: value for key, value in values.items() if value is not None}
    (directory / "manifest.json").write_text(json.dumps(given))
    return directory


def read_rows(directory: Path) -> list[Row]:
    """The bins of a set as plain values, in file order, by pyarrow alone."""
    rows: list[Row] = []
    for file in json.loads((directory / "manifest.json").read_text())["files"]:
        with pa.ipc.open_file(directory / file["name"]) as reader:
            rows += reader.read_all().to_pylist()
    return rows


def plain(one: Any) -> Row:
    """A `Bin` as one of these rows; what it does not have is left out."""
    ends = [0]
    for count in one.choice_counts.tolist():
        ends.append(ends[-1] + count)

    def cut(values: Any) -> list[Any]:
        return [values.tolist()[a:b] for a, b in pairwise(ends)]

    row = {
        "input_ids": one.input_ids.tolist(),
        "seq_lens": one.seq_lens.tolist(),
        "positions": one.positions.tolist(),
        "choice_ids": cut(one.choice_ids),
    }
    if one.row_ids is not None:
        return row | {"row_ids": one.row_ids.tolist()}
    row |= {
        "target_probs": cut(one.target_probs),
        "weights": one.weights.tolist(),
        "mix_weights": one.mix_weights.tolist(),
    }
    return row if one.observed_ids is None else row | {"observed_ids": one.observed_ids.tolist()}
