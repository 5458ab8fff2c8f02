"""Checkpoint directories, and the store of finished phases by key. Needs no torch.

A checkpoint is a directory with `state/` (tensors), `meta.json` and, written last, the marker
`COMMITTED`; readers ignore anything without the marker. A finished phase lies in the store under
its key (`plan.keys`), linked from the run's own checkpoint where the file system allows it.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from curriculum.errors import RunError
from curriculum.files import sync_directory, write_json

MARKER = "COMMITTED"
SCHEMA = 1


def commit(temporary: Path, directory: Path, meta: Mapping[str, Any]) -> None:
    """Turn a written directory into a checkpoint."""
    write_json(temporary / "meta.json", {"schema": SCHEMA, **meta})
    (temporary / MARKER).touch()
    sync_directory(temporary)
    if directory.exists():
        discard(directory)
    temporary.rename(directory)
    sync_directory(directory.parent)


def discard(directory: Path) -> None:
    """Delete a checkpoint, its marker first."""
    (directory / MARKER).unlink(missing_ok=True)
    shutil.rmtree(directory)


def committed(directory: Path) -> bool:
    return (directory / MARKER).is_file()


def read_meta(directory: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint. Raises `RunError` if it is of another schema or unreadable."""
    path = directory / "meta.json"
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); delete {directory} to go on") from None
    if meta.get("schema") != SCHEMA:
        raise RunError(f"{path}: schema {meta.get('schema')}, this version reads {SCHEMA}")
    return meta


def step_directories(checkpoints: Path) -> list[Path]:
    """Committed `step_<n>`, ordered by n as a number."""
    steps = {
        int(match[1]): path
        for path in checkpoints.glob("step_*")
        if (match := re.fullmatch(r"step_(\d+)", path.name)) and committed(path)
    }
    return [steps[step] for step in sorted(steps)]


def rotate(checkpoints: Path, keep_last: int) -> None:
    """Delete all but the newest; call it only after the newest is committed."""
    for old in step_directories(checkpoints)[:-keep_last]:
        discard(old)


def finished(store: Path, key: str) -> Path | None:
    """The finished phase of this key."""
    directory = store / key
    return directory if committed(directory) else None


def keep(store: Path, key: str, checkpoint: Path) -> Path:
    """Put a finished phase into the store; links where possible, else copies."""
    directory = store / key
    if committed(directory):
        return directory
    temporary = store / f".{key}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(checkpoint, temporary, copy_function=_link_or_copy)
    try:
        temporary.rename(directory)
    except OSError:
        # another run finished the same phase meanwhile: its content is the same by definition
        shutil.rmtree(temporary)
        if not committed(directory):
            raise
    sync_directory(store)
    return directory


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
