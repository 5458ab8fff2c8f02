"""Processes killed in the middle of a save, at every place where a save could be torn.

Each is a fork of this process. For each place: what the next process finds, and where its training
ends.
"""

import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tiny
import torch
from save_cases import engine, exact, step

from curriculum import store
from curriculum.config import Checkpoint
from curriculum.engine import checkpoint, shards
from curriculum.engine.distributed import world
from curriculum.engine.saves import Saves

STEPS = 3
POLICY = Checkpoint(every_steps=1, keep_last=1)


def die(*rest: Any, **named: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function, whose call of this number is the process's last."""
    calls = 0

    def wrapped(*rest: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return die() if calls == number else function(*rest, **named)

    return wrapped


def torn_shard() -> Callable[..., Any]:
    original = shards._Summed.write

    def write(self: Any, piece: Any) -> int:
        original(self, bytes(piece)[: len(piece) // 2])
        self._file.flush()
        return die()

    return write


def sync_call(number: int) -> Callable[[], None]:
    def patch() -> None:
        store.directories.sync_directory = at_call(store.directories.sync_directory, number)

    return patch


def patch_rename(number: int) -> Callable[[], None]:
    def patch() -> None:
        Path.rename = at_call(Path.rename, number)  # type: ignore[method-assign]

    return patch


def patch_rmtree(number: int) -> Callable[[], None]:
    def patch() -> None:
        shutil.rmtree = at_call(shutil.rmtree, number)  # type: ignore[assignment]

    return patch


# what ends the process, and the newest whole checkpoint after that; the save is the second one
PLACES: dict[str, tuple[Callable[[], None], int]] = {
    "nothing written": (lambda: setattr(shards.Writer, "write_data", die), 1),
    "half a shard": (lambda: setattr(shards._Summed, "write", torn_shard()), 1),
    "no index": (patch_rename(1), 1),
    "no meta": (lambda: setattr(store.directories, "write_json", die), 1),
    "marker, shards not synced": (sync_call(1), 1),
    "marker, not synced": (sync_call(2), 1),
    "not renamed": (patch_rename(2), 1),
    "renamed": (sync_call(3), 2),
    "old one half deleted": (patch_rmtree(3), 2),
}
# the same step is saved again over a broken one, which lies there already
REPLACING: dict[str, tuple[Callable[[], None], int]] = {
    "old one aside, new one not in place": (patch_rename(3), 1),
}
# one of each kind: a file, the commit, what follows it, the same step again
MAIN = ("half a shard", "not renamed", "renamed", *REPLACING)
SELDOM = tuple(place for place in PLACES if place not in MAIN)


def train(folder: Path, patch: Callable[[], None] | None, broken: bool = False) -> dict[str, Any]:
    """Go on from the newest whole checkpoint; every step is saved, the second under `patch`."""
    with world(tiny.ENGINE) as ranks:
        subject = engine(ranks)
        found = [d for d in store.step_directories(folder) if store.damage(d) is None]
        first = 0
        if found:
            checkpoint.load(found[-1], subject.model, subject.optimizer)
            first = int(found[-1].name.removeprefix("step_"))
        saves = Saves(folder, ranks, POLICY)
        for number in range(first, STEPS):
            step(subject, number)
            if number == 1 and patch is not None:
                saves.wait()
                if broken:
                    (folder / "step_2" / "state").mkdir(parents=True)
                    (folder / "step_2" / "COMMITTED").touch()
                patch()
            saves.start(number + 1, subject.model, subject.optimizer, {})
        saves.wait()
        saves.close()
        left = sorted(path.name for path in folder.iterdir())
        return {"began at": first, "weights": exact(subject), "left": left}


def fork(work: Callable[[], dict[str, Any]], out: Path) -> tuple[int, Path]:
    """A child process that writes what it found; for `joined`."""
    child = os.fork()
    if child == 0:
        try:
            out.write_text(json.dumps(work()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child, out


def joined(child: int, out: Path) -> dict[str, Any] | None:
    """What a child process found; None if it was killed."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    assert status == 0, "a child process failed, see above"
    return json.loads(out.read_text())


def run(root: Path, places: Sequence[str]) -> dict[str, Any]:
    """Results by place. Only a process without process groups and threads may call this."""
    torch.set_num_threads(1)
    root.mkdir()
    scratch = root / "child.json"
    found: dict[str, Any] = {
        "never killed": joined(*fork(partial(train, root / "whole", None), scratch))
    }
    for name in places:
        patch, newest = {**PLACES, **REPLACING}[name]
        place = root / name.replace(" ", "-")
        work = partial(train, place, patch, name in REPLACING)
        killed = joined(*fork(work, scratch)) is None
        found[name] = {
            "killed": killed,
            "resumed": joined(*fork(partial(train, place, None), scratch)),
            "newest": newest,
        }
    return found
