"""The files of a checkpoint, with a checksum of each that is taken while it is written.

DCP's own writer, except for two things: the CRC-32 of a file is known without reading it again,
and a disk that cannot be written says so as `OSError`, which is what torch's zip writer hides
behind an error about its own bookkeeping.
"""

import io
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem


class Writer(FileSystemWriter):
    """Writes this rank's shards below `directory`; `digests` holds the CRC-32 by file name."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.fs = _Files()

    @property
    def digests(self) -> dict[str, int]:
        return {name: stream.crc for name, stream in self.fs.written.items()}

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except Exception:
            if self.fs.failure is not None:
                raise self.fs.failure from None
            raise


class _Files(FileSystem):
    def __init__(self) -> None:
        self.written: dict[str, _Summed] = {}
        self.failure: OSError | None = None

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[io.IOBase, None, None]:
        path = Path(path)
        if mode != "wb":
            with path.open(mode) as stream:
                yield stream  # type: ignore[misc]
            return
        with path.open("wb") as file:
            stream = self.written[path.name] = _Summed(self, path, file)
            yield stream  # type: ignore[misc]


class _Summed:
    """An append-only binary stream that sums up what goes through it."""

    def __init__(self, files: _Files, path: Path, file: io.BufferedWriter) -> None:
        self._files, self._path, self._file = files, path, file
        self.crc = 0
        self.tell, self.fileno = file.tell, file.fileno

    def write(self, data: Any) -> int:
        with self._noticed():
            written = self._file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        return written

    def flush(self) -> None:
        with self._noticed():
            self._file.flush()

    def close(self) -> None:
        with self._noticed():
            self._file.close()

    @contextmanager
    def _noticed(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            self._files.failure = OSError(error.errno, error.strerror, str(self._path))
            raise
