"""Checkpoint directories, and the store of finished phases by key. Needs no torch.

A checkpoint is a directory with `state/` (tensors), `meta.json` and, written last, the marker
`COMMITTED`; readers ignore anything without the marker. `meta.json` lists the size and CRC-32 of
every file of `state/`, so that a checkpoint damaged later is known before anything is read from it:
`damage` looks at names and sizes, `corruption` at contents. A finished phase lies in the store
under its key (`plan.keys`), linked from the run's own checkpoint where the file system allows it.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from curriculum.errors import RunError
from curriculum.files import sync_directory, write_json

MARKER = "COMMITTED"
KEY_RECORD = "key.json"
SCHEMA = 2
# small, and without it nothing of a checkpoint can be read: its content is always looked at
INDEX = "state/.metadata"
_CHUNK = 1 << 22


def commit(
    temporary: Path,
    directory: Path,
    meta: Mapping[str, Any],
    digests: Mapping[str, int] | None = None,
) -> None:
    """Turn a written directory into a checkpoint.

    `digests`: CRC-32 of files below `temporary` by their relative names, where known; others are
    read. The files themselves must be synced already.
    """
    names = sorted(
        path.relative_to(temporary).as_posix()
        for path in (temporary / "state").rglob("*")
        if path.is_file()
    )
    known = digests or {}
    files = {
        name: {
            "bytes": (temporary / name).stat().st_size,
            "crc32": known[name] if name in known else crc32(temporary / name),
        }
        for name in names
    }
    write_json(temporary / "meta.json", {"schema": SCHEMA, **meta, "files": files})
    (temporary / MARKER).touch()
    sync_directory(temporary / "state")
    sync_directory(temporary)
    replaced = directory.with_name(f".{directory.name}.old.tmp")
    if directory.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        directory.rename(replaced)
    temporary.rename(directory)
    sync_directory(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


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
        schema = meta.get("schema")
    except (OSError, ValueError, AttributeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not a JSON object"
        raise RunError(f"{path}: cannot be read ({cause}); delete {directory} to go on") from None
    if schema != SCHEMA:
        raise RunError(
            f"{path}: schema {schema}, this version reads {SCHEMA}; go on with the version that "
            f"wrote it, or delete {directory}"
        )
    return meta


def damage(directory: Path) -> str | None:
    """Why a committed directory is no checkpoint, as far as names and sizes show; None if it is."""
    try:
        files = read_meta(directory)["files"]
        for name, expected in files.items():
            size = (directory / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
        if INDEX not in files:
            return f"lists no {INDEX}"
        if crc32(directory / INDEX) != files[INDEX]["crc32"]:
            return f"{INDEX} has changed since it was written"
    except RunError as error:
        return f"meta.json: {str(error).partition(': ')[2].partition('; ')[0]}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(directory)} is missing"
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    except (KeyError, TypeError, AttributeError) as error:
        return f"meta.json is not that of a checkpoint ({error!r})"
    return None


def corruption(directory: Path, part: int = 0, parts: int = 1) -> str | None:
    """The same, judged by the contents of every `parts`-th file from `part`: reads them whole."""
    if (reason := damage(directory)) is not None:
        return reason
    files = read_meta(directory)["files"]
    for name in sorted(files)[part::parts]:
        try:
            if crc32(directory / name) != files[name]["crc32"]:
                return f"{name} has changed since it was written"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def step_directories(checkpoints: Path) -> list[Path]:
    """Committed `step_<n>`, ordered by n as a number; they may be damaged."""
    steps = {
        int(match[1]): path
        for path in checkpoints.glob("step_*")
        if (match := re.fullmatch(r"step_(\d+)", path.name)) and committed(path)
    }
    return [steps[step] for step in sorted(steps)]


def clear_unfinished(checkpoints: Path) -> None:
    """Delete what a killed process left half-written or half-deleted.

    Only the one writer of a run calls this.
    """
    for left in [*checkpoints.glob(".step_*.tmp"), *checkpoints.glob("step_*")]:
        if left.is_dir() and (left.suffix == ".tmp" or not committed(left)):
            shutil.rmtree(left, ignore_errors=True)


def finished(store: Path, key: str) -> Path | None:
    """The finished phase of this key; a damaged one does not count."""
    directory = store / key
    return directory if committed(directory) and damage(directory) is None else None


def keep(store: Path, key: str, checkpoint: Path, record: Mapping[str, Any]) -> Path:
    """Put a finished phase into the store, in place of a damaged one; links where possible.

    `record` says what the key stands for, and is written beside it. Raises `RunError` where the
    store takes no more.
    """
    if (there := finished(store, key)) is not None:
        return there
    directory = store / key
    temporary = store / f".{key}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _copy_tree(checkpoint, temporary)
        write_json(temporary / KEY_RECORD, record)
        if directory.exists():
            discard(directory)
        temporary.rename(directory)
    except (OSError, RunError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # another run finished the same phase meanwhile: its content is the same by definition
        if finished(store, key) is None:
            cause = error.strerror if isinstance(error, OSError) else str(error)
            raise RunError(
                f"not put into store.dir={store}: {cause}; make room there, or name another one"
            ) from None
    sync_directory(store)
    return directory


def _copy_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        copy.mkdir() if path.is_dir() else _link_or_copy(path, copy)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
