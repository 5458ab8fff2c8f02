"""Several files as one sequence of records."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from curriculum.data.sources.lines import Address, Lines, index_lines
from curriculum.data.sources.unpack import has_lines, unpacked
from curriculum.errors import RunError


class Source:
    """Records of several files as one sequence: `source[i]` is `(Address, bytes)`, the bytes one
    JSON value without a line feed.

    Files that are not lines of JSON are unpacked once into `cache_dir/unpacked`. A source may be
    handed to other processes, forked or pickled.
    """

    def __init__(self, files: Sequence[Path | str], cache_dir: Path | str) -> None:
        """Index every file. `UserError` for a format that is not supported, `RunError` for a
        file that cannot be read, is damaged, or holds no record."""
        self.files = [Path(file) for file in files]
        self._names = [str(file) for file in self.files]
        self._rows = [not has_lines(file) for file in self.files]
        self._lines = [index_lines(unpacked(file, Path(cache_dir)), file) for file in self.files]
        self._first = [0, *accumulate(map(len, self._lines))]
        self._handles: dict[int, int] = {}

    def __len__(self) -> int:
        return self._first[-1]

    @property
    def counts(self) -> list[int]:
        """Records of each file."""
        return [len(lines) for lines in self._lines]

    def __getitem__(self, index: int) -> tuple[Address, bytes]:
        place, row = self._place(index)
        lines = self._lines[place]
        start, end = int(lines.starts[row]), int(lines.ends[row])
        data = os.pread(self._handle(place, lines), end - start, start)
        if len(data) != end - start:
            raise RunError(f"{lines.path}: became shorter while it was read; start again")
        return self._address(place, row), data

    def address(self, index: int) -> Address:
        """Where a record stands."""
        return self._address(*self._place(index))

    def _address(self, place: int, row: int) -> Address:
        number = self._lines[place].number(row)
        is_row = self._rows[place]
        return Address(self._names[place], number - is_row, is_row)

    def size(self, index: int) -> int:
        """Bytes of a record, without reading it."""
        place, row = self._place(index)
        return int(self._lines[place].ends[row] - self._lines[place].starts[row])

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = bisect_right(self._first, index) - 1
        return place, index - self._first[place]

    def _handle(self, place: int, lines: Lines) -> int:
        """Opened on first use. Reads by position share no offset, so a fork may use it too."""
        if place not in self._handles:
            try:
                self._handles[place] = os.open(lines.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                reason = error.strerror or error
                raise RunError(f"{lines.path}: cannot be read: {reason}") from None
        return self._handles[place]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_handles": {}}

    def __del__(self) -> None:
        for handle in self.__dict__.get("_handles", {}).values():
            os.close(handle)
