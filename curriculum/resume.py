"""Where a run starts: its own newest checkpoint, a phase in the store, or the beginning."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curriculum import store
from curriculum.checked import CheckedPlan
from curriculum.lineage import finished_prefix
from curriculum.plan.graph import order


@dataclass(frozen=True)
class Start:
    """`phase` is the index of the phase to go on with, `phase_step` its first step to take.

    `directory` holds weights and moments, None at the beginning; `journal` the record so far.
    """

    phase: int = 0
    phase_step: int = 0
    step: int = 0
    directory: Path | None = None
    journal: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def starting_point(plan: CheckedPlan) -> Start:
    """The place farthest along that holds weights of this very plan.

    A checkpoint counts if the key of its phase is the plan's, so one of an edited plan counts as
    far as nothing before it changed.
    """
    places = [Start()]
    for directory in store.step_directories(plan.directory / "checkpoints"):
        if (found := _place(plan, directory)) is not None:
            places.append(found)
    prefix = finished_prefix(plan.ready, plan.keys)
    if prefix:
        stored = _place(plan, Path(plan.ready.store.dir) / plan.keys[prefix[-1]])
        places += [stored] if stored is not None else []
    return max(places, key=lambda place: (place.phase, place.phase_step))


def _place(plan: CheckedPlan, directory: Path) -> Start | None:
    meta = store.read_meta(directory)
    name = meta["phase"]
    if plan.keys.get(name) != meta["key"]:
        return None
    phases = order(plan.ready.plan)
    index, phase_step = phases.index(name), meta["phase_step"]
    if phase_step == plan.ready.plan.phases[name].steps:
        index, phase_step = index + 1, 0
    journal = {**meta["journal"], "step": meta["step"]}
    here = meta["run"] == str(plan.directory)
    notes = [f"continuing after step {meta['step']} ({name})"]
    if not here:
        for row in journal["ledger"]["rows"]:
            row["status"] = "reused"
        journal["tracker"] = None
        notes = [f"reusing {', '.join(phases[:index])}: finished before, in {meta['run']}"]
    return Start(index, phase_step, meta["step"], directory, journal, notes)
