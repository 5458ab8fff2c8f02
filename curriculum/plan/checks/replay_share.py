"""`plan/replay-share`: replay keeps abilities alive, it must not be the training itself."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def replay_share(context: CheckContext) -> Iterator[Finding]:
    """Error if all replay phases together exceed `checks.max_replay_share` of nominal tokens."""
    limit = context.config.checks.max_replay_share
    replay = context.budget.totals["by_role"].get("replay")
    share = replay["share"]["nominal"] if replay else None
    if share is not None and share > limit:
        yield Finding(
            "plan/replay-share",
            "error",
            None,
            f"replay is {share:.1%} of nominal tokens ({replay['nominal_tokens']:,} of "
            f"{context.budget.totals['nominal_tokens']:,}), more than "
            f"checks.max_replay_share={limit:.0%}",
            "lower the steps of the replay phases, or raise the limit on purpose",
        )
