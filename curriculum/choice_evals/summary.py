"""All scored steps of a run, for its report and its tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curriculum.choice_evals import storage
from curriculum.choice_evals.scorers import FACTS


@dataclass(frozen=True)
class Scored:
    """One step of one set: what its scorer found, nothing where there was none."""

    name: str
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Summary:
    """The scored steps of a set, first one first, and its reliability diagram where it has one."""

    name: str
    steps: list[Scored]
    diagram: str | None


def summaries(run_dir: Path) -> list[Summary]:
    """One for each set of which a step is scored."""
    found: dict[str, list[Scored]] = {}
    for directory in storage.steps(run_dir):
        values = storage.read_metrics(directory)
        if values is not None:
            name, step = directory.parent.name, int(directory.name.removeprefix("step_"))
            found.setdefault(name, []).append(Scored(name, step, metrics_of(values)))
    return [Summary(name, steps, _diagram(run_dir, name)) for name, steps in found.items()]


def metrics_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The scorer's own metrics of a marked step."""
    return {name: value for name, value in values.items() if name not in FACTS}


def described(values: Mapping[str, Any]) -> str:
    """`accuracy 0.71, ece 0.043 (200 rows, 0.4 s)`."""
    shown = [f"{name} {value:.4g}" for name, value in metrics_of(values).items()]
    told = f"{values['rows']} rows, {values['seconds']:.1f} s"
    return f"{', '.join(shown)} ({told})" if shown else told


def _diagram(run_dir: Path, name: str) -> str | None:
    path = storage.diagram_file(run_dir, name)
    return path.read_text(encoding="utf-8") if path.is_file() else None
