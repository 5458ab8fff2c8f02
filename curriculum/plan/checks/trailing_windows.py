"""`data/trailing-windows`: bins of a choice phase that no step of its one pass sees."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.budget import one_pass
from curriculum.plan.checks.context import CheckContext


def trailing_windows(context: CheckContext) -> Iterator[Finding]:
    """Warning per phase whose last bins do not fill a step."""
    for row in context.budget.phases:
        phase = context.config.plan.phases[row.name]
        if not one_pass(phase) or row.windows_needed is None or row.windows_available is None:
            continue
        left = row.windows_available - row.windows_needed
        if 0 < left < row.batch_size:
            yield Finding(
                "data/trailing-windows",
                "warning",
                row.name,
                f"{row.name}: one pass over {row.windows_available:,} bins is {row.steps:,} steps "
                f"x {row.batch_size}; the last {left:,} bins fill no step and are not trained on",
                f"choose a plan.phases.{row.name}.batch_size that divides the bins, or give "
                f"plan.phases.{row.name}.epochs=1, which fills the last step from the start",
            )
