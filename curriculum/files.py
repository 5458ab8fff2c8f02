"""Files that are either complete or absent."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from curriculum.errors import RunError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends well, and else leaves
    nothing. Synced, and its directory too.

    Raises `RunError` where that is impossible: a full disk, no permission.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Strict JSON (no NaN)."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def sync_directory(directory: Path) -> None:
    """Make renames inside a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold an exclusive lock; the kernel frees it when the process ends, however it ends.

    Gives the descriptor of the lock's file. Raises `RunError` where the lock's file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
    except OSError as error:
        raise RunError(f"{path.parent}: cannot be written: {error.strerror or error}") from None
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()
