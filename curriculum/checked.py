"""A plan before it trains: prepared, budgeted, checked and keyed. Needs no torch."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from curriculum.config import Config
from curriculum.dry import DryRun, dry_run
from curriculum.errors import RunError
from curriculum.files import write_json
from curriculum.lineage import base_key, finished_prefix, phase_keys
from curriculum.plan.graph import order
from curriculum.plan.scale import scaled


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that may start: as composed, as it will run, its budget, and a key for each phase.

    `base_key`: that of the end of the plan it builds on, if `plan.init_from` names one.
    """

    composed: Config
    ready: Config
    dry_run: DryRun
    keys: dict[str, str]
    base_key: str | None = None

    @property
    def directory(self) -> Path:
        return Path(self.ready.run.dir)

    @property
    def final_key(self) -> str:
        return self.keys[order(self.ready.plan)[-1]]


def check(config: Config) -> CheckedPlan:
    """Prepare all data of a plan, budget and check it, and find out what is finished already."""
    looked = dry_run(replace(config, dry_run="data"), starting=True)
    if not looked.ok:
        return CheckedPlan(config, looked.ready, looked, {})
    keys = phase_keys(looked.ready, config)
    if keys is None:
        raise RunError(f"plan {config.plan.name}: the length of a phase is still unknown")
    cached = finished_prefix(looked.ready, keys)
    return CheckedPlan(
        config, looked.ready, looked.with_cached(cached), keys, base_key(config, hashed=True)
    )


def finished_record(config: Config) -> str | None:
    """What to say if this very plan is finished in its run directory."""
    directory = Path(config.run.dir)
    try:
        record = json.loads((directory / "finished.json").read_text(encoding="utf-8"))
        keys = phase_keys(scaled(config), config)
    except (OSError, ValueError, RunError):
        return None
    if keys is None or record["key"] != list(keys.values())[-1]:
        return None
    if not (directory / "final" / "config.json").is_file():
        return None
    return f"{record['tables']}\neverything is up to date; the model is in {directory / 'final'}"


def write_finished(plan: CheckedPlan, tables: str) -> None:
    """Record that a plan is finished, so that the same command knows."""
    write_json(plan.directory / "finished.json", {"key": plan.final_key, "tables": tables})
