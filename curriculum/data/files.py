"""Writing a cache file so that readers see it whole or not at all, and faults are one line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from curriculum.errors import RunError
from curriculum.files import sync_directory


def write_file(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Let `write` fill a temporary file, then sync it, rename it and sync the directory.

    Raises `RunError` where that is impossible: a full disk, no permission.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        _remove(temporary)
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:  # the directory itself is out of reach, and the caller is told so
        return
