"""`plan/ends-on-replay`: the last thing a model learns is what it keeps best."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def ends_on_replay(context: CheckContext) -> Iterator[Finding]:
    """Error if the last phase of the plan is replay; where branches are merged, if all of theirs
    are."""
    rows = context.closing
    last = rows[-1]
    if all(row.role == "replay" for row in rows):
        yield Finding(
            "plan/ends-on-replay",
            "error",
            last.name,
            f"the plan ends on replay phase {last.name} ({last.objective}, {last.steps} steps)",
            "end on a generative phase, or put replay before the last one",
        )
