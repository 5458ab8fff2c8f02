"""`plan/warmup-longer-than-first-phase`: the rate is still rising when the objective changes."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def warmup_longer_than_first_phase(context: CheckContext) -> Iterator[Finding]:
    """Warning if a plan-wide warm-up runs on into the second phase, or any phase is all warm-up."""
    plan = context.config.plan
    for place, row in enumerate(context.budget.phases):
        own = plan.phases[row.name].schedule
        schedule = own or context.config.schedule
        within = place == 0 if schedule.scope == "plan" else True
        if within and row.steps and schedule.warmup_steps > row.steps:
            key = f"plan.phases.{row.name}.schedule" if own else "schedule"
            yield Finding(
                "plan/warmup-longer-than-first-phase",
                "warning",
                row.name,
                f"warm-up takes {schedule.warmup_steps} steps, {row.name} has {row.steps}: it ends "
                "before its full rate is reached",
                f"set {key}.warmup_steps to less than the phase's steps (before scale)",
            )
