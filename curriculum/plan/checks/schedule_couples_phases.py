"""`plan/schedule-couples-phases`: a change to a later phase changes earlier rates."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def schedule_couples_phases(context: CheckContext) -> Iterator[Finding]:
    """Warning if a rate depends on the length of a later phase (a cosine over the whole plan)."""
    config = context.config
    places = {"schedule": config.schedule}
    places |= {
        f"plan.phases.{name}.schedule": phase.schedule
        for name, phase in config.plan.phases.items()
        if phase.schedule is not None
    }
    for place, schedule in places.items():
        coupled = schedule.kind == "cosine" and schedule.scope == "plan"
        if coupled and len(config.plan.phases) > 1:
            yield Finding(
                "plan/schedule-couples-phases",
                "warning",
                None,
                f"{place}: cosine over the whole plan, so every rate depends on the steps of every "
                "later phase and finished phases cannot be reused when one changes",
                f"use schedule=wsd, or {place}.scope=phase",
            )
