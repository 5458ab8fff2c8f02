"""Lines of a file by number, found once and read one by one.

Lines end at `\\n` and nowhere else: U+2028, U+0085 or a form feed inside a JSON string is content.
A UTF-8 byte order mark, the `\\r` of a CRLF, blank lines and a missing last newline are tolerated.
The file is scanned in blocks and read by position, so memory holds the index only, 16 bytes a
record, however large the file is.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from curriculum.errors import RunError

_BLOCK = 1 << 24
_BOM = b"\xef\xbb\xbf"
_LF, _CR = b"\n"[0], b"\r"[0]
_BLANKS = np.frombuffer(b" \t\r", dtype=np.uint8)


@dataclass(frozen=True, order=True)
class Address:
    """Where a record stands: `file:line` with lines counted from 1, blank ones included, or
    `file: row N` with rows counted from 0 in formats that have no lines."""

    file: str
    line: int
    is_row: bool = False

    def __str__(self) -> str:
        return f"{self.file}: row {self.line}" if self.is_row else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Lines:
    """Byte ranges [start, end) of the lines of a file that are not blank, int64.

    `numbers`: their line numbers, None where no line before them is blank.
    """

    path: Path
    starts: np.ndarray
    ends: np.ndarray
    numbers: np.ndarray | None

    def __len__(self) -> int:
        return len(self.starts)

    def number(self, row: int) -> int:
        """Line number, counted from 1, of a line that is not blank."""
        return row + 1 if self.numbers is None else int(self.numbers[row])


def index_lines(path: Path, name: Path) -> Lines:
    """Find the lines of a file. Raises `RunError` about `name`, the file as the user knows it, if
    it cannot be read or holds no record."""
    try:
        with path.open("rb", buffering=0) as handle:
            size = os.fstat(handle.fileno()).st_size
            if size == 0:
                raise RunError(f"{name}: the file is empty; a source needs at least one record")
            lines = _scan(path, handle.fileno(), size)
    except OSError as error:
        raise RunError(f"{name}: cannot be read: {error.strerror or error}") from None
    if not len(lines):
        raise RunError(f"{name}: holds no record; a source needs at least one record")
    return lines


def _scan(path: Path, handle: int, size: int) -> Lines:
    """Ends of lines, with the bytes before and after each: what tells a CRLF and a blank line."""
    breaks: list[np.ndarray] = []
    returns: list[np.ndarray] = []
    spaces: list[np.ndarray] = []
    for start in range(0, size, _BLOCK):
        # one byte more on both sides; what lies outside the file counts as a line end
        before = os.pread(handle, 1, start - 1) if start else b"\n"
        block = np.frombuffer(before + os.pread(handle, _BLOCK + 1, start), dtype=np.uint8)
        found = np.flatnonzero(block[1 : _BLOCK + 1] == _LF)
        breaks.append(found + start)
        returns.append(block[found] == _CR)
        follows = block[np.minimum(found + 2, len(block) - 1)]
        spaces.append(np.isin(follows, _BLANKS))
    first, last = os.pread(handle, 4, 0), os.pread(handle, 1, size - 1)
    opening = len(_BOM) if first.startswith(_BOM) else 0
    at = np.concatenate(breaks)
    starts = np.concatenate([[opening], at + 1])
    ends = np.concatenate([at, [size]])
    ends -= np.concatenate([*returns, [last == b"\r"]]) & (ends > starts)
    keep = ends > starts
    # A line that begins with white space may be blank; few do, so they are looked at singly.
    spaced = np.concatenate([[first[opening : opening + 1] in (b" ", b"\t", b"\r")], *spaces])
    for row in np.flatnonzero(keep & spaced).tolist():
        line = os.pread(handle, int(ends[row] - starts[row]), int(starts[row]))
        keep[row] = bool(line.strip(b" \t\r"))
    if keep[:-1].all():  # the last one is blank in every file that ends in a line feed
        return Lines(path, starts[keep], ends[keep], None)
    return Lines(path, starts[keep], ends[keep], np.flatnonzero(keep) + 1)
