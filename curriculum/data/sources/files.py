"""Which files a pattern names, and whether they are still the same: stats and digests."""

import glob
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from curriculum.errors import RunError
from curriculum.files import write_json


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
