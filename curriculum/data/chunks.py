"""Windows on disk: `chunk_00000.arrow`, `chunk_00001.arrow`, ... beside one `manifest.json`.

A chunk is an Arrow IPC file with one record batch and one row a window, memory-mapped on read. A
chunk counts once the manifest lists it. Every file is written under a temporary name, synced and
renamed, the manifest last, so a process that dies leaves either the state before or the state
after, never something in between that looks finished.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curriculum.data.examples import Item, Report
from curriculum.errors import RunError
from curriculum.files import replacing, write_json

if TYPE_CHECKING:
    from curriculum.data.packed_choice import Bin

SCHEMA_VERSION = 2
"""Part of every set's key. Raise it with any change of what records turn into."""

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Window:
    """One row. T tokens in S texts; for packed examples S examples laid end to end.

    `input_ids` int32 [T]; `seq_lens` int32 [S]; `loss_weights` float32 [T], position i belongs to
    the prediction of token i + 1 of the same example; `document_ids` int64 [S] for retrieval (a
    hash of the normalised text of query and documents), else empty; `record_ids` int64, the row of
    the source of each example. For choice, `choice` has the rows that predict an answer and
    `mix_components` the names of its mixture; `loss_weights` are then those of the rows.
    """

    input_ids: np.ndarray
    seq_lens: np.ndarray
    loss_weights: np.ndarray
    document_ids: np.ndarray
    record_ids: np.ndarray
    choice: "Bin | None" = None
    mix_components: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChunkInfo:
    """What the manifest says of a chunk. `records` were read, `examples` came of them."""

    file: str
    bytes: int
    records: int
    examples: int
    windows: int
    tokens: int
    trained_tokens: int
    drops: dict[str, int]
    cuts: dict[str, int]
    dropped_at: dict[str, list[str]]
    cut_at: dict[str, list[str]]


@dataclass(frozen=True)
class Manifest:
    """A set of windows: what it was made of, how many records make a chunk, its chunks, and
    whether the source is used up."""

    schema_version: int
    key: str
    inputs: dict[str, Any]
    chunk_records: int
    chunks: tuple[ChunkInfo, ...]
    exhausted: bool

    @property
    def windows(self) -> int:
        return sum(chunk.windows for chunk in self.chunks)


def read_manifest(directory: Path, key: str) -> Manifest | None:
    """The manifest of a set, or None if there is none of this schema and key."""
    try:
        values = json.loads((directory / _MANIFEST).read_text())
        chunks = tuple(ChunkInfo(**chunk) for chunk in values.pop("chunks"))
        manifest = Manifest(**values, chunks=chunks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if (manifest.schema_version, manifest.key) == (SCHEMA_VERSION, key) else None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Make the listed chunks count."""
    write_json(directory / _MANIFEST, asdict(manifest))


def remove_manifest(directory: Path) -> None:
    """Make the set count as not prepared."""
    (directory / _MANIFEST).unlink(missing_ok=True)


def write_chunk(
    directory: Path,
    index: int,
    key: str,
    windows: Sequence[Sequence[Item]],
    records: int,
    report: Report,
) -> ChunkInfo:
    """Write one chunk, each window a sequence of items, and say what is in it."""
    import pyarrow as pa  # imported late: a dry run reads the manifest only

    items = [item for window in windows for item in window]
    counts = [len(window) for window in windows]
    tokens = _join([item.input_ids for item in items], np.int32)
    weights = _join([item.loss_weights for item in items], np.float32)
    sizes = _per_window([len(item.input_ids) for item in items], counts)
    trained = _per_window([np.count_nonzero(item.loss_weights) for item in items], counts)
    columns = {
        "input_ids": _lists(tokens, sizes),
        "seq_lens": _lists(
            np.array([n for item in items for n in item.seq_lens], np.int32),
            _per_window([len(item.seq_lens) for item in items], counts),
        ),
        "loss_weights": _lists(weights, sizes),
        "document_ids": _lists(
            np.array([n for item in items for n in item.document_ids], np.int64),
            _per_window([len(item.document_ids) for item in items], counts),
        ),
        "record_ids": _lists(np.array([item.record_id for item in items], np.int64), counts),
        "trained_tokens": pa.array(np.array(trained, np.int32)),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    schema = batch.schema.with_metadata({"key": key, "chunk": str(index)})
    path = directory / f"chunk_{index:05d}.arrow"
    with replacing(path) as handle, pa.ipc.new_file(handle, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return ChunkInfo(
        file=path.name,
        bytes=path.stat().st_size,
        records=records,
        examples=len(items),
        windows=len(windows),
        tokens=len(tokens),
        trained_tokens=int(sum(trained)),
        drops=dict(sorted(report.drops.items())),
        cuts=dict(sorted((+report.cuts).items())),
        dropped_at=report.dropped_at,
        cut_at=report.cut_at,
    )


def _join(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def _per_window(values: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Sums of consecutive groups of `counts` values."""
    ends = np.cumsum([0, *values], dtype=np.int64)
    borders = np.cumsum([0, *counts])
    return np.diff(ends[borders]).tolist()


def _lists(values: np.ndarray, sizes: Sequence[int]) -> Any:
    import pyarrow as pa

    offsets = np.cumsum([0, *sizes]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


class Chunk:
    """A chunk opened for reading. Raises `RunError` if the file is not what the manifest says."""

    def __init__(self, directory: Path, info: ChunkInfo, key: str) -> None:
        import pyarrow as pa

        path = directory / info.file
        try:
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                metadata = reader.schema.metadata or {}
                if metadata.get(b"key", b"").decode() != key:
                    raise RunError(f"{path}: belongs to another set of windows")
                batch = reader.get_batch(0)
        except (pa.ArrowInvalid, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{path}: truncated or not an Arrow file ({reason})") from None
        if batch.num_rows != info.windows:
            raise RunError(
                f"{path}: holds {batch.num_rows} windows, but the manifest says {info.windows}"
            )
        # from_dlpack shares memory as to_numpy does, but does not import pandas (a second)
        self.trained_tokens: np.ndarray = np.from_dlpack(batch.column("trained_tokens"))
        self._columns = {
            name: tuple(np.from_dlpack(part) for part in (column.offsets, column.values))
            for name in ("input_ids", "seq_lens", "loss_weights", "document_ids", "record_ids")
            for column in [batch.column(name)]
        }
        self.tokens: np.ndarray = np.diff(self._columns["input_ids"][0])

    def __getitem__(self, row: int) -> Window:
        return Window(**{name: self._part(name, row) for name in self._columns})

    def _part(self, name: str, row: int) -> np.ndarray:
        """A copy: the map is read-only, and must not be kept open by a window."""
        offsets, values = self._columns[name]
        return values[offsets[row] : offsets[row + 1]].copy()


def damage(directory: Path, manifest: Manifest) -> str | None:
    """Why the files are not what the manifest says, or None. Contents are mapped, not read."""
    for info in manifest.chunks:
        path = directory / info.file
        size = path.stat().st_size if path.is_file() else None
        if size != info.bytes:
            found = "is missing" if size is None else f"has {size} bytes"
            return f"{path}: {found}, but the manifest says {info.bytes} bytes"
        try:
            Chunk(directory, info, manifest.key)
        except RunError as error:
            return str(error)
    return None
