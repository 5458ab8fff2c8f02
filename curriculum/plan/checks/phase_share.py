"""`plan/phase-share`: one phase that dominates the compute decides what the model becomes."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def phase_share(context: CheckContext) -> Iterator[Finding]:
    """Warning per phase above `checks.max_phase_share` of nominal tokens.

    Foundation phases are meant to dominate, and a plan of one phase has nothing to balance.
    """
    limit = context.config.checks.max_phase_share
    rows = context.budget.phases
    for row in rows if len(rows) > 1 else ():
        share = row.share["nominal"]
        if row.role != "foundation" and share is not None and share > limit:
            yield Finding(
                "plan/phase-share",
                "warning",
                row.name,
                f"{row.name} takes {share:.1%} of nominal tokens ({row.nominal_tokens:,}), more "
                f"than checks.max_phase_share={limit:.0%}",
                f"lower plan.phases.{row.name}.steps, or raise the limit on purpose",
            )
