"""What the loss is. An objective is one file plus one line of registration here.

Objectives see micro-batches and head outputs; they know neither ranks nor sharding.
"""

import importlib
from collections.abc import Callable

from curriculum.config import Phase, Plan
from curriculum.errors import UserError
from curriculum.objectives.base import Objective
from curriculum.objectives.causal import Causal
from curriculum.objectives.choice import ChoiceObjective
from curriculum.objectives.generative import Generative
from curriculum.objectives.retrieval import RetrievalObjective

OBJECTIVES: dict[str, Callable[[Phase], Objective]] = {
    "generative": Generative,
    "causal": Causal,
    "retrieval": RetrievalObjective,
    "choice": ChoiceObjective,
}


def build_all(plan: Plan) -> dict[str, Objective]:
    """The objective of every phase that trains, by its name. Raises `UserError`."""
    return {name: build(name, phase) for name, phase in plan.phases.items() if not phase.is_merge}


def build(name: str, phase: Phase) -> Objective:
    """The objective of a phase; a mapping with `_target_` names a user's own class.

    The class is called with the phase and the mapping's other keys. Raises `UserError` for an
    unknown name or a class that cannot be imported.
    """
    if isinstance(phase.objective, str):
        if phase.objective not in OBJECTIVES:
            raise UserError(
                f"plan.phases.{name}.objective={phase.objective!r}: unknown objective; "
                f"known: {', '.join(OBJECTIVES)}, or a mapping with _target_"
            )
        try:
            return OBJECTIVES[phase.objective](phase)
        except UserError as error:
            raise UserError(f"plan.phases.{name}: {error}") from None
    options = dict(phase.objective)
    target = str(options.pop("_target_", ""))
    module, _, attribute = target.rpartition(".")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"plan.phases.{name}.objective._target_={target!r}: cannot be imported ({error})"
        ) from None
    return factory(phase, **options)
