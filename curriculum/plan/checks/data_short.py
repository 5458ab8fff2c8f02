"""`data/short`: a phase that asks for more windows than its data holds dies on its way."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def data_short(context: CheckContext) -> Iterator[Finding]:
    """Error per phase that needs more windows than there are, unless it may repeat them."""
    for row in context.budget.phases:
        phase = context.config.plan.phases[row.name]
        if row.windows_needed is None or row.windows_available is None or not row.windows_exact:
            continue
        repeats = phase.data.on_short == "repeat" and row.windows_available > 0
        by_epochs = phase.steps is None and phase.epochs is not None
        if row.windows_needed > row.windows_available and not repeats and not by_epochs:
            steps = row.windows_available // row.batch_size
            yield Finding(
                "data/short",
                "error",
                row.name,
                f"{row.name} needs {row.windows_needed:,} windows ({row.steps:,} steps x "
                f"{row.batch_size}), its data holds {row.windows_available:,} "
                f"({steps:,} steps)",
                f"give more data, lower plan.phases.{row.name}.steps, or set "
                f"plan.phases.{row.name}.data.on_short=repeat",
            )
