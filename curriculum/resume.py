"""Where a run goes on: which phases are left, and where weights and moments of the others lie.

A phase is finished if the store, or a checkpoint of the run itself, holds its end under the key
that it has in this very plan; so an edited plan keeps whatever does not descend from the edit.
"""

import os
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from curriculum import store
from curriculum.checked import CheckedPlan
from curriculum.plan.graph import order, parents, unfinished

if TYPE_CHECKING:
    from curriculum.engine.distributed import World


@dataclass(frozen=True)
class Start:
    """`waiting`: phases left to run, in order. `ends`: where each finished phase lies.

    `begun`: waiting phases that an interruption left within, as the steps taken and where they lie.
    `loads`: directories that the run will read, the first one first. `journal`: the record so far,
    with `step` its last step; None if nothing is finished or begun. `damaged`: checkpoints of the
    run that cannot be used, with the reason.
    """

    waiting: list[str]
    ends: dict[str, Path] = field(default_factory=dict)
    begun: dict[str, tuple[int, Path]] = field(default_factory=dict)
    loads: list[Path] = field(default_factory=list)
    journal: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return 0 if self.journal is None else int(self.journal["step"])


@dataclass(frozen=True)
class _Place:
    """A checkpoint of the plan. `own`: this run wrote it, here or where its directory lay before.
    `tracked`: what tracks it goes on here, which is not so in a copy of a directory."""

    directory: Path
    phase: str
    phase_step: int
    done: bool
    own: bool
    tracked: bool
    journal: Mapping[str, Any]
    run: str


def agreed_start(plan: CheckedPlan, ranks: "World", refused: MutableMapping[Path, str]) -> Start:
    """`starting_point` as the first rank sees it, with every directory that it loads read whole.

    Every rank calls this, and reads its part. What is damaged is added to `refused`.
    """
    while True:
        start: Start = ranks.from_main(lambda: starting_point(plan, refused))
        for directory in start.loads:
            found = ranks.gather(store.corruption(directory, ranks.rank, ranks.size))
            if reasons := [str(reason) for reason in found if reason is not None]:
                refused[directory] = reasons[0]
        if not any(directory in refused for directory in start.loads):
            return start


def starting_point(plan: CheckedPlan, refused: Mapping[Path, str] = MappingProxyType({})) -> Start:
    """What is finished, begun and left of a plan. `refused`: directories not to use, and why."""
    phases = order(plan.ready.plan)
    damaged = dict(refused)
    ends: dict[str, _Place] = {}
    begun: dict[str, _Place] = {}
    for directory in _directories(plan):
        if directory in damaged:
            continue
        if (reason := store.damage(directory)) is not None:
            damaged[directory] = reason
        elif (place := _place(plan, directory)) is not None:
            (ends if place.done else begun)[place.phase] = place
    waiting = unfinished(plan.ready.plan, ends)
    places = ends | {name: begun[name] for name in waiting if name in begun}
    used = {name: places[name] for name in phases if name in places}
    journal = _journal(plan, used, waiting) if used else None
    return Start(
        waiting=waiting,
        ends={name: place.directory for name, place in used.items() if place.done},
        begun={n: (p.phase_step, p.directory) for n, p in used.items() if not p.done},
        loads=_loads(plan, used, waiting),
        journal=journal,
        notes=[f"{directory}: not used, {reason}" for directory, reason in damaged.items()]
        + _told(phases, used, waiting, journal),
        damaged={d: why for d, why in damaged.items() if d.is_relative_to(plan.directory)},
    )


def _loads(plan: CheckedPlan, used: Mapping[str, _Place], waiting: Collection[str]) -> list[Path]:
    """What the waiting phases go on from; the end of the plan where nothing waits."""
    edges, last = parents(plan.ready.plan), order(plan.ready.plan)[-1]
    needed = [[name] if name in used else edges[name] for name in waiting] or [[last]]
    places = [used[name] for names in needed for name in names if name in used]
    return list(dict.fromkeys(place.directory for place in places))


def _directories(plan: CheckedPlan) -> list[Path]:
    """Where a part of the plan may lie; of one phase the best comes last."""
    own = store.step_directories(plan.directory / "checkpoints")
    wanted = _trained_in(own) if plan.composed.run.fresh else set(plan.keys)
    stored = [Path(plan.ready.store.dir) / key for n, key in plan.keys.items() if n in wanted]
    return [*own, *(directory for directory in stored if store.committed(directory))]


def _trained_in(checkpoints: Collection[Path]) -> set[str]:
    """Phases that the run of these checkpoints has finished itself."""
    metas = [store.read_meta(path) for path in checkpoints if store.damage(path) is None]
    rows = [row for meta in metas for row in meta["journal"]["ledger"]["rows"]]
    return {row["phase"] for row in rows if row["status"] == "done"}


def _place(plan: CheckedPlan, directory: Path) -> _Place | None:
    """What a directory holds of this plan; None if it is of another one, or of an edited phase."""
    meta = store.read_meta(directory)
    name, phase_step = meta["phase"], meta["phase_step"]
    if plan.keys.get(name) != meta["key"]:
        return None
    done = bool(meta["phase_end"])  # a run that was stopped in the probes has taken every step
    same = _same_place(meta["run"], plan.directory)
    own = same or directory.is_relative_to(plan.directory)
    tracked = same or not os.path.exists(meta["run"])
    journal = {**meta["journal"], "step": meta["step"]}
    return _Place(directory, name, phase_step, done, own, tracked, journal, meta["run"])


def _same_place(recorded: str, directory: Path) -> bool:
    try:
        return recorded == str(directory) or os.path.samefile(recorded, directory)
    except OSError:
        return False


def _journal(
    plan: CheckedPlan, used: Mapping[str, _Place], waiting: Collection[str]
) -> dict[str, Any]:
    """One record of all that is kept: each phase's row from where it lies.

    Probes come from the place farthest along. The tracker's runs are continued if they are of this
    run and know of nothing else.
    """
    rows = []
    for name in order(plan.ready.plan):
        row, own = _row(plan, name, used) if name in used or name not in waiting else (None, False)
        if row is not None:
            rows.append(row if own else {**row, "status": "reused"})
    last = list(used.values())[-1]
    step = sum(row["steps"] for row in rows)
    before = next((p.journal["before"] for p in used.values() if p.journal["before"]), [])
    same = last.own and last.tracked and step == last.journal["step"]
    return {
        "ledger": {**last.journal["ledger"], "rows": rows},
        "before": before,
        "after": last.journal["after"],
        "tracker": last.journal["tracker"] if same else None,
        "step": step,
    }


def _row(
    plan: CheckedPlan, name: str, used: Mapping[str, _Place]
) -> tuple[dict[str, Any] | None, bool]:
    """The ledger's row of a phase, and whether this run wrote it.

    A phase whose end was deleted is still told of by those that came after it.
    """
    places = [used[name]] if name in used else [p for p in used.values() if p.done]
    for place in places:
        for row in place.journal["ledger"]["rows"]:
            if row["phase"] == name and row.get("key") == plan.keys[name]:
                return row, place.own and row["status"] != "reused"
    return None, False


def _told(
    phases: Collection[str],
    used: Mapping[str, _Place],
    waiting: Collection[str],
    journal: Mapping[str, Any] | None,
) -> list[str]:
    reused = [n for n in phases if n not in waiting and not (n in used and used[n].own)]
    runs = dict.fromkeys(place.run for place in used.values() if not place.own)
    notes = []
    if reused and runs:
        notes.append(f"reusing {', '.join(reused)}: finished before, in {', '.join(runs)}")
    own = [place for place in used.values() if place.own]
    if own and journal is not None:
        notes.append(f"continuing after step {journal['step']} ({own[-1].phase})")
    return notes
