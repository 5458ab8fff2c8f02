"""A plan before it trains: prepared, budgeted, checked and keyed. Needs no torch."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from curriculum.config import Config
from curriculum.dry import DryRun, dry_run
from curriculum.errors import RunError
from curriculum.files import write_json
from curriculum.lineage import Lineage, finished_phases, lineage
from curriculum.plan.graph import order
from curriculum.plan.keys import to_json
from curriculum.plan.scale import scaled


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that may start: as composed, as it will run, its budget, and a key for each phase.

    `lineage`: what the keys stand for; None where a finding keeps the plan from starting.
    """

    composed: Config
    ready: Config
    dry_run: DryRun
    keys: dict[str, str]
    lineage: Lineage | None = None

    @property
    def directory(self) -> Path:
        return Path(self.ready.run.dir)

    @property
    def base_key(self) -> str | None:
        """Key of the end of the plan that it builds on, if `plan.init_from` names one."""
        found = self.lineage
        return None if found is None or found.base is None else found.origin_key

    @property
    def final_key(self) -> str:
        return self.keys[order(self.ready.plan)[-1]]


def check(config: Config) -> CheckedPlan:
    """Prepare all data of a plan, budget and check it, and find out what is finished already."""
    looked = dry_run(replace(config, dry_run="data"), starting=True)
    if not looked.ok:
        return CheckedPlan(config, looked.ready, looked, {})
    found = lineage(looked.ready, config)
    if found is None:
        raise RunError(f"plan {config.plan.name}: the length of a phase is still unknown")
    cached = [] if config.run.fresh else finished_phases(looked.ready, found.keys)
    looked = looked.with_cached(cached)
    return CheckedPlan(config, looked.ready, looked, found.keys, found)


def finished_record(config: Config) -> str | None:
    """What to say if this very plan is finished in its run directory."""
    directory = Path(config.run.dir)
    try:
        record = json.loads((directory / "finished.json").read_text(encoding="utf-8"))
        key, tables = record["key"], record["tables"]
        found = lineage(scaled(config), config)
    except (OSError, ValueError, KeyError, TypeError, RunError):
        return None
    if found is None or key != next(reversed(found.keys.values())):
        return None
    if not (directory / "final" / "config.json").is_file():
        return None
    return f"{tables}\neverything is up to date; the model is in {directory / 'final'}"


def key_record(plan: CheckedPlan, phase: str) -> dict[str, Any]:
    """What a phase's key stands for, down to what the plan starts from: kept beside its weights."""
    assert plan.lineage is not None, "a plan that trains has passed its checks"
    return to_json(plan.keys[phase], plan.lineage.chain(phase))


def write_finished(plan: CheckedPlan, tables: str) -> None:
    """Record that a plan is finished, so that the same command knows."""
    write_json(plan.directory / "finished.json", {"key": plan.final_key, "tables": tables})
