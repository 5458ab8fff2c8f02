"""What lies in the store of finished phases: its entries, their sizes, and what they stand for."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from curriculum import store
from curriculum.errors import RunError
from curriculum.plan import keys


@dataclass(frozen=True)
class Entry:
    """One finished phase. `used` is when a run made or last used it, in seconds since 1970.

    `damage` says what is wrong with it; such an entry is as good as absent.
    """

    key: str
    directory: Path
    phase: str
    step: int
    run: str
    used: float
    damage: str | None

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """`key.json`: what the key stands for; None if it cannot be read."""
        try:
            values = json.loads((self.directory / store.KEY_RECORD).read_text(encoding="utf-8"))
            keys.from_json(values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return values

    @property
    def plan(self) -> str | None:
        """The plan whose run made it."""
        return None if self.record is None else self.record["chain"][self.key]["plan"]


def entries(directory: Path) -> list[Entry]:
    """Finished phases in a store, the one used last first."""
    found = [
        _entry(path)
        for path in (directory.iterdir() if directory.is_dir() else ())
        if not path.name.startswith(".") and store.committed(path)
    ]
    return sorted(found, key=lambda entry: (-entry.used, entry.key))


def _entry(path: Path) -> Entry:
    damage = store.damage(path)
    try:
        meta = store.read_meta(path)
    except RunError:
        meta = {}
    record = path / store.KEY_RECORD
    used = (record if record.is_file() else path).stat().st_mtime
    phase, step, run = meta.get("phase", "?"), meta.get("step", 0), meta.get("run", "?")
    return Entry(path.name, path, str(phase), int(step), str(run), used, damage)


def touch(directory: Path, key: str) -> None:
    """Note that a run uses a finished phase now; nothing if there is none."""
    try:
        os.utime(directory / key / store.KEY_RECORD)
    except OSError:
        return


@dataclass(frozen=True)
class Sizes:
    """Bytes of files: `whole` in all, `freed` by deleting, since other links keep the rest."""

    whole: int
    freed: int


def sizes(directories: Iterable[Path]) -> Sizes:
    """Of directories together. A file with several links counts once, and is freed only if all of
    its links lie within them."""
    seen: dict[tuple[int, int], tuple[int, int, int]] = {}  # inode -> bytes, links, links seen
    for directory in directories:
        for path in directory.rglob("*"):
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue  # deleted meanwhile
            if path.is_dir() and not path.is_symlink():
                continue
            inode = (stat.st_dev, stat.st_ino)
            links = seen[inode][2] if inode in seen else 0
            seen[inode] = (stat.st_size, stat.st_nlink, links + 1)
    return Sizes(
        whole=sum(size for size, _, _ in seen.values()),
        freed=sum(size for size, links, ours in seen.values() if ours >= links),
    )
