"""`plan/unbounded-replay`: a replay phase without a number of steps can swallow the run."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext
from curriculum.plan.scale import phase_steps


def unbounded_replay(context: CheckContext) -> Iterator[Finding]:
    """Error per replay phase with neither `steps` nor `max_steps`."""
    for name, phase in context.config.plan.phases.items():
        if phase.role == "replay" and phase_steps(phase) is None:
            length = "no length at all" if phase.epochs is None else f"only epochs={phase.epochs:g}"
            yield Finding(
                "plan/unbounded-replay",
                "error",
                name,
                f"replay phase {name} has {length}: its number of steps follows the data",
                f"set plan.phases.{name}.steps, or max_steps beside epochs",
            )
