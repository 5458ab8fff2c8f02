"""Target distributions beside an evaluation set, whose bins hold none: what a scorer compares with.

`targets.arrow` is an Arrow IPC file with the columns `row_id` int64 and `target_probs`
list<float32>, one probability a choice in the order of the row's `choice_ids`. Written in the order
of row ids, read in any.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from curriculum.data.packed_choice.arrow import list_array
from curriculum.data.packed_choice.checks import SUM_TOLERANCE
from curriculum.data.packed_choice.columns import Ragged
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.files import replacing

TARGETS_FILE = "targets.arrow"


def write_targets(directory: Path | str, targets: Sequence[np.ndarray]) -> None:
    """Write the probabilities of each row, by row id; whole or not at all. `BadSet`."""
    import pyarrow as pa

    path = Path(directory) / TARGETS_FILE
    probs = Ragged(np.concatenate(targets), np.cumsum([0, *map(len, targets)]))
    _check(path, probs.values, probs.sizes)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(np.arange(len(targets), dtype=np.int64)), list_array(probs, np.float32)],
        names=["row_id", "target_probs"],
    )
    with replacing(path) as handle, pa.ipc.new_file(handle, batch.schema) as writer:
        writer.write_batch(batch)


def read_targets(file: Path | str, counts: np.ndarray) -> np.ndarray:
    """Target probabilities of all choices, float32 [sum(counts)], row after row by row id.

    `counts` int64 [N]: choices of each row. `BadSet` if the file is no such file, or does not hold
    every row once with a distribution over its choices.
    """
    import pyarrow as pa

    path = Path(file)
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            table = reader.read_all()
        ids, probs = (table[name].combine_chunks() for name in ("row_id", "target_probs"))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSet(path, f"holds no row_id and target_probs ({reason})") from None
    if not pa.types.is_integer(ids.type):
        raise BadSet(path, f"column row_id has the type {ids.type}; it must be int64")
    lists = pa.types.is_list(probs.type) or pa.types.is_large_list(probs.type)
    if not lists or not pa.types.is_floating(probs.type.value_type):
        raise BadSet(path, f"column target_probs has the type {probs.type}; it must be list<float>")
    if ids.null_count or probs.null_count or probs.flatten().null_count:
        raise BadSet(path, "row_id and target_probs must hold no null")
    if not np.array_equal(np.sort(ids), np.arange(len(counts))):
        raise BadSet(path, f"must hold every row id from 0 to {len(counts) - 1} once")
    ordered = probs.take(pa.array(np.argsort(ids)))
    sizes = np.asarray(ordered.value_lengths()).astype(np.int64)
    if len(wrong := np.flatnonzero(sizes != counts)):
        row = int(wrong[0])
        rule = f"row_id={row}: has {sizes[row]} probabilities for {counts[row]} choices"
        raise BadSet(path, rule)
    values = np.asarray(ordered.flatten()).astype(np.float32)
    _check(path, values, sizes)
    return values


def _check(path: Path, probs: np.ndarray, sizes: np.ndarray) -> None:
    """Each row's probabilities are finite, at least 0, and sum to 1, as those of training are."""
    rows = np.repeat(np.arange(len(sizes)), sizes)
    if len(wrong := np.flatnonzero(~((probs >= 0) & (probs < np.inf)))):
        at = int(wrong[0])
        rule = f"target_probs={probs[at]:.6g}: must be finite and at least 0"
        raise BadSet(path, f"row_id={rows[at]}: {rule}")
    sums = np.bincount(rows, probs.astype(np.float64), minlength=len(sizes))
    if len(wrong := np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)):
        row = int(wrong[0])
        rule = f"target_probs sum to {sums[row]:.6g}; they sum to 1 within {SUM_TOLERANCE}"
        raise BadSet(path, f"row_id={row}: {rule}")
