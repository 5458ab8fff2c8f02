"""`plan/starts-from-scratch`: replay and repair assume a model that already can do something."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def starts_from_scratch(context: CheckContext) -> Iterator[Finding]:
    """Error if the plan starts from random weights and has no foundation phase."""
    plan = context.config.plan
    if plan.init_from == "scratch" and all(
        phase.role != "foundation" for phase in plan.phases.values()
    ):
        yield Finding(
            "plan/starts-from-scratch",
            "error",
            None,
            f"plan.init_from=scratch: {plan.name} starts from random weights and has no "
            "foundation phase",
            "set plan.init_from to a checkpoint, a Hugging Face directory or plan:NAME",
        )
