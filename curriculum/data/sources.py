"""Where records lie: file patterns, lines by index, and digests of contents.

A source is one or several JSONL files, addressed by record index. Lines end at `\\n` and nowhere
else: U+2028, U+0085 or a form feed inside a JSON string is content. A UTF-8 byte order mark, the
`\\r` of a CRLF, blank lines and a missing last newline are tolerated. Files are memory-mapped and
indexed with numpy, so a file larger than memory costs only its index.
"""

import glob
import hashlib
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from curriculum.errors import RunError, UserError
from curriculum.files import write_json

SUPPORTED = (".jsonl",)

_BOM = b"\xef\xbb\xbf"
_INDEX_BLOCK = 1 << 26


@dataclass(frozen=True, order=True)
class Address:
    """Where a record stands: `file:line`, lines counted from 1, blank ones included."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def expand(patterns: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files that the patterns name, and the patterns that name none.

    Patterns keep their order; the matches of one glob are sorted; a file appears once. A file
    whose name contains glob characters is taken literally if it exists.
    """
    files: dict[Path, None] = {}
    missing: list[str] = []
    for pattern in patterns:
        literal = Path(pattern).expanduser()
        if literal.is_file():
            found = [literal]
        else:
            matches = sorted(glob.glob(str(literal), recursive=True))
            found = [Path(match) for match in matches if os.path.isfile(match)]
        if not found:
            missing.append(pattern)
        files.update(dict.fromkeys(found))
    return list(files), missing


class Source:
    """Records of several JSONL files as one sequence: `source[i]` is `(Address, line bytes)`."""

    def __init__(self, files: Sequence[Path | str]) -> None:
        """Index every file. `UserError` for a format that is not supported, `RunError` for a
        file that cannot be read or holds no record."""
        self.files = [Path(file) for file in files]
        self._lines = [_index_file(file) for file in self.files]
        self._first = np.cumsum([0, *(len(lines.starts) for lines in self._lines)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> tuple[Address, bytes]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = int(np.searchsorted(self._first, index, side="right")) - 1
        lines, row = self._lines[place], index - int(self._first[place])
        address = Address(str(self.files[place]), int(lines.numbers[row]))
        return address, lines.buffer[int(lines.starts[row]) : int(lines.ends[row])]


@dataclass(frozen=True)
class _Lines:
    """Byte ranges of the lines that are not blank, and their numbers in the file."""

    buffer: mmap.mmap
    starts: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray


def _index_file(file: Path) -> _Lines:
    if file.suffix not in SUPPORTED:
        supported = ", ".join(SUPPORTED)
        raise UserError(f"{file}: format {file.suffix or '(none)'!r} is not supported; "
                        f"supported: {supported}")  # fmt: skip
    try:
        with file.open("rb") as handle:
            if os.fstat(handle.fileno()).st_size == 0:
                raise RunError(f"{file}: the file is empty; a source needs at least one record")
            buffer = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror or error}") from None
    lines = _index_lines(buffer)
    if not len(lines.starts):
        raise RunError(f"{file}: holds blank lines only; a source needs at least one record")
    return lines


def _index_lines(buffer: mmap.mmap) -> _Lines:
    data = np.frombuffer(buffer, dtype=np.uint8)
    breaks = np.concatenate(
        [
            np.flatnonzero(data[start : start + _INDEX_BLOCK] == ord("\n")) + start
            for start in range(0, len(data), _INDEX_BLOCK)
        ]
    )
    starts = np.concatenate([[0], breaks + 1])
    ends = np.concatenate([breaks, [len(data)]])
    if buffer[:3] == _BOM:
        starts[0] = len(_BOM)
    filled = ends > starts
    ends = ends - (filled & (data[ends - 1] == ord("\r")))
    numbers = np.arange(1, len(starts) + 1)
    keep = ends > starts
    # A line that starts with white space may be blank; few do, so they are looked at singly.
    space = np.isin(data[np.minimum(starts, len(data) - 1)], np.frombuffer(b" \t\r", np.uint8))
    for row in np.flatnonzero(keep & space):
        keep[row] = bool(buffer[int(starts[row]) : int(ends[row])].strip(b" \t\r"))
    return _Lines(buffer, starts[keep], ends[keep], numbers[keep])


def stats(files: Sequence[Path | str]) -> list[list[str | int]]:
    """`[absolute path, size, mtime_ns, inode]` of each file: changes whenever a content may."""
    rows: list[list[str | int]] = []
    for file in files:
        try:
            stat = os.stat(file)
        except OSError as error:
            raise RunError(f"{file}: cannot be read: {error.strerror or error}") from None
        rows.append([os.path.abspath(file), stat.st_size, stat.st_mtime_ns, stat.st_ino])
    return rows


def digest(files: Sequence[Path | str], cache_dir: Path | str) -> str:
    """SHA-256 over the contents of the files in order. Contents seen before are not read again:
    a file's digest is remembered by path, size, mtime and inode."""
    total = hashlib.sha256()
    for file in files:
        known = _remembered(file, cache_dir)
        total.update((known or _hash_and_remember(file, cache_dir)).encode())
    return total.hexdigest()


def known_digest(files: Sequence[Path | str], cache_dir: Path | str) -> str | None:
    """`digest` without reading any content: None if one of the files has not been hashed."""
    total = hashlib.sha256()
    for file in files:
        known = _remembered(file, cache_dir) if os.path.isfile(file) else None
        if known is None:
            return None
        total.update(known.encode())
    return total.hexdigest()


def _digest_path(file: Path | str, cache_dir: Path | str) -> Path:
    name = hashlib.sha256(os.path.abspath(file).encode()).hexdigest()[:32]
    return Path(cache_dir) / "digests" / f"{name}.json"


def _remembered(file: Path | str, cache_dir: Path | str) -> str | None:
    try:
        entry = json.loads(_digest_path(file, cache_dir).read_text())
        return str(entry["sha256"]) if entry["stat"] == stats([file])[0] else None
    except (OSError, ValueError, KeyError, TypeError):  # absent or unreadable: hash again
        return None


def _hash_and_remember(file: Path | str, cache_dir: Path | str) -> str:
    before = stats([file])[0]
    try:
        with open(file, "rb") as handle:
            value = hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror or error}") from None
    if stats([file])[0] != before:
        raise RunError(f"{file}: changed while it was read; start again once it is complete")
    write_json(_digest_path(file, cache_dir), {"stat": before, "sha256": value})
    return value
