"""`plan/idle-ranks`: a step of fewer windows than ranks leaves some of them without work."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext

_SHOWN = 3


def idle_ranks(context: CheckContext) -> Iterator[Finding]:
    """One warning for all phases whose `batch_size` is below a stated `engine.world_size`."""
    world = context.config.engine.world_size or 1
    rows = context.budget.phases
    short = {row.name: row.batch_size for row in rows if (row.batch_size or world) < world}
    if not short:
        return
    told = [f"{name} {size}" for name, size in list(short.items())[:_SHOWN]]
    if len(short) > _SHOWN:
        told.append(f"{len(short) - _SHOWN} more")
    yield Finding(
        "plan/idle-ranks",
        "warning",
        None,
        f"{world} ranks, but {len(short)} of {len(rows)} phases have fewer windows a step "
        f"({', '.join(told)}): the ranks beyond them save memory, not time",
        f"use {max(short.values())} ranks or fewer, or raise batch_size (which changes training)",
    )
