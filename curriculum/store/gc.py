"""Which finished phases may go, and their deletion.

A phase goes if every rule that was given says so, or if it is damaged, and never while a running
process names its key. Deleting is a rename under the store's lock, which no run can see half done,
and then the slow part.
"""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from curriculum.files import locked
from curriculum.store.entries import Entry, Sizes, entries, sizes
from curriculum.store.use import LOCK, Use, uses


@dataclass(frozen=True)
class Rules:
    """`older_than` seconds since a run last used it; not among the `keep` used last; named by no
    run directory (`unreachable`). None and False are no rules."""

    older_than: float | None = None
    keep: int | None = None
    unreachable: bool = False


@dataclass(frozen=True)
class Verdict:
    """What is to happen with an entry, and why it stays."""

    entry: Entry
    goes: bool
    why: str


@dataclass(frozen=True)
class Collection:
    """Verdicts on all entries, and what their deletion frees. `leftovers`: of killed processes."""

    verdicts: list[Verdict]
    leftovers: list[Path]
    sizes: Sizes

    @property
    def doomed(self) -> list[Entry]:
        return [verdict.entry for verdict in self.verdicts if verdict.goes]


def collect(store: Path, rules: Rules, delete: bool, now: float | None = None) -> Collection:
    """Judge every entry of a store, and delete what goes if `delete`."""
    with locked(store / LOCK):
        found = judge(store, rules, time.time() if now is None else now)
        if not delete:
            return found
        away = [_set_aside(entry.directory) for entry in found.doomed] + found.leftovers
    for directory in away:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def judge(store: Path, rules: Rules, now: float) -> Collection:
    """What would go. Call it under the store's lock to act on it."""
    known, users = entries(store), uses(store)
    verdicts = [
        _verdict(entry, place, rules, users, now) for place, entry in enumerate(known, start=1)
    ]
    # what a process writes at the moment has such a name too
    leftovers = [] if any(use.live for use in users) else sorted(store.glob(".*.tmp"))
    doomed = [verdict.entry.directory for verdict in verdicts if verdict.goes]
    return Collection(verdicts, leftovers, sizes([*doomed, *leftovers]))


def _verdict(entry: Entry, place: int, rules: Rules, users: Sequence[Use], now: float) -> Verdict:
    for use in users:
        if use.live and entry.key in use.keys:
            return Verdict(entry, False, f"in use by {use.run}")
    if entry.damage is not None:
        return Verdict(entry, True, f"damaged: {entry.damage}")
    if rules.older_than is not None and now - entry.used <= rules.older_than:
        return Verdict(entry, False, "used lately")
    if rules.keep is not None and place <= rules.keep:
        return Verdict(entry, False, f"among the {rules.keep} used last")
    named = [use.run for use in users if entry.key in use.keys]
    if rules.unreachable and named:
        return Verdict(entry, False, f"of {named[0]}")
    return Verdict(entry, True, "goes")


def _set_aside(directory: Path) -> Path:
    """Out of sight of every reader, in one step."""
    aside = directory.with_name(f".{directory.name}.{os.getpid()}.gc.tmp")
    directory.rename(aside)
    return aside
