"""`plan/evals-never-due`: choice evals whose interval no phase reaches show nothing, unnoticed."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def evals_never_due(context: CheckContext) -> Iterator[Finding]:
    """Warning per settings of choice evals that are due at no step of the phases they are for."""
    config, phases = context.config, context.config.plan.phases
    steps = {row.name: row.steps for row in context.budget.phases}
    own = [name for name in phases if phases[name].choice_eval is not None]
    others = [name for name in phases if name not in own]
    places = [(f"plan.phases.{name}.choice_eval", name, [name]) for name in own]
    for key, phase, names in [*places, ("choice_eval", None, others)]:
        settings = config.choice_eval if phase is None else phases[phase].choice_eval
        if settings is None or not settings.sets or settings.at_start or settings.at_end:
            continue
        counts = [count for name in names if (count := steps[name]) is not None]
        longest = max(counts, default=0)
        if len(counts) == len(names) and settings.interval and longest < settings.interval:
            yield Finding(
                "plan/evals-never-due",
                "warning",
                phase,
                f"{key}.interval={settings.interval:,} is never reached in phases of at most "
                f"{longest:,} steps: {', '.join(settings.sets)} will not be evaluated",
                f"lower {key}.interval, or set {key}.at_end=true",
            )
