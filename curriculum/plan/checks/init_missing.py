"""`plan/init-missing`: the weights that a plan continues have to be somewhere."""

from collections.abc import Iterator
from pathlib import Path

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def init_missing(context: CheckContext) -> Iterator[Finding]:
    """`plan.init_from` not given, or no such path: error when a run starts, else a warning."""
    start = context.config.plan.init_from
    if start == "scratch" or (start or "").startswith("plan:"):
        return
    if start is None:
        message = "plan.init_from is not given"
    elif not Path(start).exists():
        message = f"plan.init_from={start}: no such file or directory"
    else:
        return
    yield Finding(
        "plan/init-missing",
        "error" if context.starting else "warning",
        None,
        message,
        "set plan.init_from to a checkpoint, a Hugging Face directory, plan:NAME or scratch",
    )
