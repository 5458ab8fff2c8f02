"""Arrow IPC files of a set: mapped as flat columns, and written whole.

Lists may be `list` or `large_list`, and numbers of any width whose values fit; columns that the
format does not know are left alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curriculum.data.packed_choice.columns import (
    EVALUATION,
    OPTIONAL,
    TRAINING,
    Columns,
    Ragged,
)
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"


def read_file(path: Path, num_bins: int, before: int, evaluation: bool) -> list[Columns]:
    """The record batches of one file, in order. `BadSet` if it is missing, damaged, not in the file
    format, of other columns, or does not hold `num_bins` rows. `before`: bins of earlier files."""
    import pyarrow as pa

    says = f"the manifest says {num_bins} bins"
    try:
        with path.open("rb") as handle:
            opening = handle.read(len(_MAGIC))
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise BadSet(path, f"{reason}; {says}") from None
    if opening != _MAGIC:
        kind = "an Arrow stream, or no Arrow at all" if opening else "empty"
        raise BadSet(path, f"is not an Arrow IPC file but {kind}; {says}")
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batches = [reader.get_batch(n) for n in range(reader.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
            names = reader.schema.names
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSet(path, f"is truncated or damaged ({reason}); {says}") from None
    if (rows := sum(batch.num_rows for batch in batches)) != num_bins:
        raise BadSet(path, f"holds {rows} bins, but {says}")
    found, first = [], 0
    for batch in batches:
        if batch.num_rows:
            found.append(_columns(batch, names, _Batch(path, first, before), evaluation))
        first += batch.num_rows
    return found


def write_file(path: Path, columns: Columns, evaluation: bool) -> None:
    """Columns as a file of one record batch, in the types of the format; whole or absent."""
    import pyarrow as pa

    arrays = {
        name: list_array(columns[name], kind)
        for name, (_, kind) in _kinds(evaluation).items()
        if name in columns
    }
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    with replacing(path) as handle, pa.ipc.new_file(handle, batch.schema) as writer:
        writer.write_batch(batch)


def _kinds(evaluation: bool) -> dict[str, tuple[bool, Any]]:
    return EVALUATION if evaluation else TRAINING | OPTIONAL


class _Batch:
    """Where a record batch stands, for what is said about it."""

    def __init__(self, path: Path, first: int, before: int) -> None:
        self.path, self.first, self.before = path, first, before

    def bad(self, rule: str, bin: int | None = None) -> BadSet:
        return BadSet(self.path, rule, None if bin is None else self.first + bin, None, self.before)


def _columns(
    batch: "pa.RecordBatch", names: Sequence[str], place: _Batch, evaluation: bool
) -> Columns:
    columns = {}
    for name, (nested, kind) in _kinds(evaluation).items():
        if names.count(name) > 1:
            raise place.bad(f"column {name} is given {names.count(name)} times")
        if name in names:
            columns[name] = _ragged(
                batch.column(names.index(name)), name, nested, np.dtype(kind), place
            )
        elif name not in OPTIONAL:
            raise place.bad(f"column {name} is missing; there are {', '.join(names) or 'none'}")
    return columns


def _ragged(
    array: "pa.Array", name: str, nested: bool, kind: "np.dtype[Any]", place: _Batch
) -> Ragged:
    import pyarrow.types as types

    whole, levels = array, []
    for _ in range(1 + nested):
        if not (types.is_list(array.type) or types.is_large_list(array.type)):
            break
        levels.append(array)
        array = array.values
    fits = types.is_integer(array.type) if kind.kind == "i" else types.is_floating(array.type)
    if len(levels) <= nested or not fits:
        wanted = f"list<{kind.name}>"
        wanted = f"list<{wanted}>" if nested else wanted
        raise place.bad(f"column {name} has the type {whole.type}; it must be {wanted}")
    offsets = [np.from_dlpack(level.offsets) for level in levels]
    for depth, level in enumerate([*levels, array]):
        if level.null_count:
            at = level.is_null().to_pylist().index(True)
            for above in reversed(offsets[:depth]):
                at = int(np.searchsorted(above, at, side="right")) - 1
            raise place.bad(f"column {name} holds a null", at)
    return _from_zero(np.from_dlpack(array), *offsets)


def _from_zero(values: np.ndarray, offsets: np.ndarray, inner: np.ndarray | None = None) -> Ragged:
    """Without what lies before the first and behind the last list, which Arrow allows."""
    start, stop = int(offsets[0]), int(offsets[-1])
    if inner is None:
        return Ragged(values[start:stop], offsets - start if start else offsets)
    part = inner[start : stop + 1]
    first, last = int(part[0]), int(part[-1])
    return Ragged(
        values[first:last], offsets - start if start else offsets, part - first if first else part
    )


def list_array(column: Ragged, kind: Any) -> "pa.Array":
    """A column as Arrow lists, or lists of lists, of a numpy type."""
    import pyarrow as pa

    values = pa.array(column.values.astype(kind, copy=False))
    levels: Sequence[np.ndarray] = (
        [column.offsets] if column.inner is None else [column.inner, column.offsets]
    )
    for offsets in levels:
        values = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return values
