"""Who uses a store: processes that run now, and run directories that may run again.

A process that runs a plan holds a file in `.use/processes/` of the store, locked until it ends in
whatever way, that names the keys of the plan; a file that nobody locks belongs to the dead.
`.use/runs/` holds the keys of each run directory's plan as last started: what none of them names
cannot be reached by running any of them again. Both change under `.use/lock`, which a collector
holds too.
"""

import fcntl
import hashlib
import json
import logging
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from curriculum.errors import RunError
from curriculum.files import locked, write_json
from curriculum.store.entries import touch

LOCK = ".use/lock"
_PROCESSES, _RUNS = ".use/processes", ".use/runs"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """Keys that a run names. `live`: by a process that runs now."""

    run: str
    keys: frozenset[str]
    live: bool


@contextmanager
def in_use(store: Path, run: Path, keys: Collection[str]) -> Iterator[None]:
    """Nothing collects these keys while the block runs. One process of a run does this.

    A store that cannot be written protects nothing, and is told of; the run goes on.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(_registered(store, run, keys))
        except (OSError, RunError) as error:
            log.warning("store.dir: not registered as in use, store gc may take from it: %s", error)
        yield


@contextmanager
def _registered(store: Path, run: Path, keys: Collection[str]) -> Iterator[None]:
    values = {"run": str(run), "keys": sorted(keys)}
    path = store / _PROCESSES / f"{socket.gethostname()}-{os.getpid()}-{_digest(str(run))}.json"
    with ExitStack() as stack:
        with locked(store / LOCK):
            path.parent.mkdir(exist_ok=True)
            stack.callback(_delete, path)
            handle = stack.enter_context(path.open("w", encoding="utf-8"))
            fcntl.flock(handle, fcntl.LOCK_EX)
            json.dump(values, handle)
            handle.flush()
            write_json(store / _RUNS / f"{_digest(str(run))}.json", values)
        for key in keys:
            touch(store, key)
        yield


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def uses(store: Path) -> list[Use]:
    """Who uses the store. Call it under the store's lock to act on it.

    Files of dead processes, and of run directories that are gone, are deleted on the way.
    """
    found = []
    for path in sorted((store / _PROCESSES).glob("*.json")):
        with suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found.append(_use(handle.read(), path, live=True))
            else:
                path.unlink()
    for path in sorted((store / _RUNS).glob("*.json")):
        use = _use(path.read_text(encoding="utf-8"), path, live=False)
        if _is_gone(use.run):
            path.unlink()
        else:
            found.append(use)
    return found


def _is_gone(directory: str) -> bool:
    """False also where one may not look: another user's run counts as there."""
    try:
        os.stat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _use(text: str, path: Path, live: bool) -> Use:
    try:
        values = json.loads(text)
        return Use(str(values["run"]), frozenset(values["keys"]), live)
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: not readable; delete it if no run uses this store") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
