"""Combinations of valid values that no run could mean. Refused before anything starts."""

import re
from collections.abc import Iterator

from curriculum.config import Config, Phase
from curriculum.errors import UserError
from curriculum.plan import graph

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~-]*")


def consistent(config: Config) -> Config:
    """The same configuration, or a `UserError` that names every contradiction, one a line."""
    problems = [*_names(config), *_model(config), *_ranks(config)]
    for name, phase in config.plan.phases.items():
        problems += _phase(f"plan.phases.{name}", phase)
    problems += _choice_evals(config)
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


def _ranks(config: Config) -> Iterator[str]:
    size, replicate = config.engine.world_size, config.engine.replicate
    if size is not None and size % replicate:
        yield f"engine.replicate={replicate}: must divide engine.world_size={size}"


def _phase(key: str, phase: Phase) -> Iterator[str]:
    if phase.is_merge:
        yield from _merge(key, phase)
        return
    if phase.merge is not None:
        yield f"{key}.merge: objective is {phase.objective_name!r}, only merge averages phases"
    if phase.steps is not None:
        for name in ("max_steps", "epochs"):
            if (value := getattr(phase, name)) is not None:
                yield f"{key}.{name}={value}: steps={phase.steps} is exact; set one to null"
    elif (
        phase.max_steps is None
        and phase.epochs is None
        and phase.role != "replay"
        and phase.task != "choice"  # one pass over its bins
    ):
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
    if (phase.objective_name == "choice") != (phase.task == "choice") and isinstance(
        phase.objective, str
    ):
        yield f"{key}.task={phase.task!r}: does not fit objective {phase.objective_name!r}"
    if phase.task != "choice" and (phase.loss.import_path or phase.loss.kwargs):
        yield f"{key}.loss.import_path={phase.loss.import_path!r}: only choice phases take a loss"
    if not phase.data.sources:
        yield f"{key}.data.sources=[]: give at least one file or pattern"


def _merge(key: str, phase: Phase) -> Iterator[str]:
    """A merge takes no step: what only steps use would be ignored."""
    unused = {
        "steps": phase.steps,
        "max_steps": phase.max_steps,
        "epochs": phase.epochs,
        "data.sources": phase.data.sources or None,
        "data.heldout": phase.data.heldout or None,
        "retrieval": phase.retrieval,
        "schedule": phase.schedule,
    }
    for name, value in unused.items():
        if value is not None:
            yield f"{key}.{name}={value}: a merge trains on nothing; leave it out"
    weights = phase.merge.weights if phase.merge is not None else None
    named = [phase.after] if isinstance(phase.after, str) else phase.after or []
    if weights is not None and set(weights) != set(named):
        yield (
            f"{key}.merge.weights: of {', '.join(weights)}; give one for each of "
            f"after={named}, and no other"
        )


def _choice_evals(config: Config) -> Iterator[str]:
    """Sets become folders of the run, one for each name."""
    phases = config.plan.phases
    settings = {"choice_eval": config.choice_eval}
    settings |= {f"plan.phases.{name}.choice_eval": phases[name].choice_eval for name in phases}
    known: dict[str, tuple[str, str]] = {}
    for key, one in settings.items():
        if one is None or (not one.sets and key != "choice_eval"):
            continue
        if not one.sets:
            yield f"{key}.sets={{}}: name at least one set (NAME: DIR), or set {key}=null"
        elif one.interval is None and not one.at_start and not one.at_end:
            yield f"{key}: never due; give interval, at_start=true or at_end=true"
        if one.kwargs and one.import_path is None:
            yield f"{key}.kwargs={one.kwargs}: no function to hand them to; give import_path"
        for name, where in one.sets.items():
            place, first = known.setdefault(name, (key, where))
            if not _NAME.fullmatch(name):
                yield f"{key}.sets: the name {name!r} may hold letters, digits and _ . - ~ only"
            elif where != first:
                yield f"{key}.sets.{name}={where}: {place}.sets.{name} is {first}; rename one"
