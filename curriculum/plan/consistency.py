"""Combinations of valid values that no run could mean. Refused before anything starts."""

import re
from collections.abc import Iterator

from curriculum.config import Config, Phase
from curriculum.errors import UserError
from curriculum.plan import graph

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~-]*")


def consistent(config: Config) -> Config:
    """The same configuration, or a `UserError` that names every contradiction, one a line."""
    problems = [*_names(config), *_model(config)]
    for name, phase in config.plan.phases.items():
        problems += _phase(f"plan.phases.{name}", phase)
    if problems:
        raise UserError("\n".join(problems))
    graph.order(config.plan)
    return config


def _names(config: Config) -> Iterator[str]:
    """Plan, profile and phase names become folders."""
    places = {"plan.name": config.plan.name, "profile.name": config.profile.name}
    places |= {f"plan.phases.{name}": name for name in config.plan.phases}
    for place, name in places.items():
        if not _NAME.fullmatch(name):
            yield f"{place}: the name {name!r} may hold letters, digits and _ . - ~ only"


def _model(config: Config) -> Iterator[str]:
    model = config.model
    if model.path is not None and model.config is not None:
        yield f"model.path={model.path!r}: model.config is given too; set one of them to null"


def _phase(key: str, phase: Phase) -> Iterator[str]:
    if phase.steps is not None:
        for name in ("max_steps", "epochs"):
            if (value := getattr(phase, name)) is not None:
                yield f"{key}.{name}={value}: steps={phase.steps} is exact; set one to null"
    elif phase.max_steps is None and phase.epochs is None and phase.role != "replay":
        yield f"{key}.steps: the phase has no length; give steps, max_steps or epochs"
    if phase.micro_batch_size is not None and phase.micro_batch_size > phase.batch_size:
        yield (
            f"{key}.micro_batch_size={phase.micro_batch_size}: larger than "
            f"batch_size={phase.batch_size}"
        )
    if phase.objective_name == "retrieval" and phase.retrieval is None:
        yield f"{key}.retrieval: objective retrieval needs {{temperature, documents}}"
    if (phase.objective_name == "retrieval") != (phase.task == "retrieval") and isinstance(
        phase.objective, str
    ):
        yield f"{key}.task={phase.task!r}: does not fit objective {phase.objective_name!r}"
    if not phase.data.sources:
        yield f"{key}.data.sources=[]: give at least one file or pattern"
