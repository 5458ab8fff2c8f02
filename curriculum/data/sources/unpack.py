"""Files that are not lines of JSON, turned into lines once and kept in the cache by content.

Afterwards every format is read alike: in any order, by several processes, without holding more than
a record. An unpacked file is complete or absent; what is cut off or damaged is refused, never read
as a shorter file.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from curriculum.data.sources.files import digest
from curriculum.errors import RunError, UserError
from curriculum.files import locked, replacing

VERSION = 1
"""Part of the name of an unpacked file. Raise it with any change of what files turn into."""

_BLOCK = 1 << 22
_ROWS = 1024
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_SPACE = re.compile(r"[ \t\r\n]*")

Unpack = Callable[[Path, BinaryIO], None]


class Damaged(Exception):
    """What is wrong with a file; the caller adds its name."""


def unpacked(file: Path, cache_dir: Path) -> Path:
    """The file as lines of JSON: itself, or its copy in the cache.

    `UserError` for a format that is not supported, `RunError` for a file that is damaged.
    """
    unpack = _unpacker(file)
    if unpack is None or (file.is_file() and not file.stat().st_size):
        return file  # an empty file is refused by whoever reads it
    copy = cache_dir / "unpacked" / f"{digest([file], cache_dir)[:32]}.v{VERSION}.jsonl"
    if copy.is_file():
        return copy
    with locked(copy.with_suffix(".lock")):
        if not copy.is_file():
            with replacing(copy) as out:
                try:
                    unpack(file, out)
                except (Damaged, OSError, ValueError) as error:  # ArrowInvalid is a ValueError
                    reason = str(error).strip().splitlines()[0]
                    raise RunError(f"{file}: cannot be read: {reason}") from None
    return copy


def has_lines(file: Path) -> bool:
    """True if records of the file have line numbers, otherwise they have row numbers."""
    return _unpacker(file) in (None, _gzip, _zstandard)


def _unpacker(file: Path) -> Unpack | None:
    name = file.name.lower()
    for suffix, unpack in FORMATS.items():
        if name.endswith(suffix):
            return None if unpack is _json and _holds_lines(file) else unpack
    raise UserError(
        f"{file}: format {file.suffix or '(none)'!r} is not supported; "
        f"supported: {', '.join(FORMATS)}"
    )


def _holds_lines(file: Path) -> bool:
    """True for a `.json` file that is JSON Lines under another name: its first line that is not
    blank is an object, and another one follows."""
    try:
        with file.open("rb") as handle:
            filled = (line for line in handle if line.strip())
            first, second = next(filled, b""), next(filled, b"")
    except OSError:
        return False  # whoever reads it says so
    if not second:
        return False
    try:
        return isinstance(orjson.loads(first.removeprefix(b"\xef\xbb\xbf")), dict)
    except orjson.JSONDecodeError:
        return False


def _gzip(file: Path, out: BinaryIO) -> None:
    _decompress(file, out, "gzip")


def _zstandard(file: Path, out: BinaryIO) -> None:
    _decompress(file, out, "zstd")


def _decompress(file: Path, out: BinaryIO, codec: str) -> None:
    """All members or frames of a compressed file. pyarrow refuses one that is cut, where
    `zstandard` would end as if the file did."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.OSFile(str(file)), codec) as stream:
        while block := stream.read(_BLOCK):
            out.write(block)


def _parquet(file: Path, out: BinaryIO) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        written = _write_batches(table.iter_batches(batch_size=_ROWS), out)
        if written != table.metadata.num_rows:
            raise Damaged(f"holds {written} rows, its footer says {table.metadata.num_rows}")


def _arrow(file: Path, out: BinaryIO) -> None:
    """The file format, or the stream format, which counts only with its end-of-stream marker: one
    that is cut between two batches would otherwise read as a shorter file."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        if source.size() >= 6 and source.read_at(6, 0) == b"ARROW1":
            reader = pa.ipc.open_file(source)
            _write_batches(map(reader.get_batch, range(reader.num_record_batches)), out)
            return
        size = source.size()
        end = source.read_at(len(_END_OF_STREAM), max(0, size - len(_END_OF_STREAM)))
        if end != _END_OF_STREAM:
            raise Damaged(
                "neither an Arrow file nor a complete Arrow stream: it has no end-of-stream "
                "marker; cut off, or the writer was not closed"
            )
        source.seek(0)
        _write_batches(iter(pa.ipc.open_stream(source)), out)
        if source.tell() != size:
            raise Damaged(f"holds {size - source.tell()} bytes after the end of its stream")


def _write_batches(batches: Iterator[Any], out: BinaryIO) -> int:
    """One line a row. A null field is a missing field: columns give every row every key."""
    written = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            for row in batch.slice(start, _ROWS).to_pylist():
                try:
                    out.write(orjson.dumps(without_nulls(row)) + b"\n")
                except TypeError as error:
                    raise Damaged(f"row {written}: {error}; columns must be plain values") from None
                written += 1
    return written


def without_nulls(value: Any) -> Any:
    """The value without the keys that are null; elements of lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _json(file: Path, out: BinaryIO) -> None:
    """An array of records, or one record. Each is copied as it stands, so that whatever is wrong
    with it is found, and named by its row, where records are read."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Damaged(f"byte {error.start} is not UTF-8") from None
    start = _skip(text, 0)
    rows = _elements(text, start + 1) if text.startswith("[", start) else iter([text])
    for row in rows:
        # a line feed inside a JSON value is white space: in strings it is escaped
        out.write(row.replace("\r", " ").replace("\n", " ").encode() + b"\n")


def _elements(text: str, at: int) -> Iterator[str]:
    """The texts of the elements of an array, from behind its opening bracket on."""
    decoder, row = json.JSONDecoder(), 0
    at = _skip(text, at)
    closed = text.startswith("]", at)
    while not closed:
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            line = text.count("\n", 0, at) + 1
            raise Damaged(f"row {row} (from line {line} on): not valid JSON ({reason})") from None
        yield text[at:end]
        row, at = row + 1, _skip(text, end)
        closed = text.startswith("]", at)
        if not closed and not text.startswith(",", at):
            raise Damaged(f"a comma or ] is missing before row {row}; cut off?")
        at = at if closed else _skip(text, at + 1)
    if _skip(text, at + 1) != len(text):
        raise Damaged("holds something after its array; a .json file is one array of records")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


FORMATS: dict[str, Unpack | None] = {
    ".jsonl": None,
    ".jsonl.gz": _gzip,
    ".jsonl.zst": _zstandard,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
