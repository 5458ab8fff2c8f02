"""Checks of a plan: each is one small file with a stable code, registered by one line below.

A check takes a `CheckContext` and yields `Finding`s. `checks.ignore` turns findings of a code to
severity `ignored`: they stay visible and no longer stop anything.
"""

from collections.abc import Callable, Iterable

from curriculum.finding import Finding, ranked
from curriculum.plan.checks.context import CheckContext
from curriculum.plan.checks.data_missing import data_missing
from curriculum.plan.checks.data_short import data_short
from curriculum.plan.checks.decay_on_replay import decay_on_replay
from curriculum.plan.checks.ends_on_replay import ends_on_replay
from curriculum.plan.checks.evals_never_due import evals_never_due
from curriculum.plan.checks.idle_ranks import idle_ranks
from curriculum.plan.checks.init_missing import init_missing
from curriculum.plan.checks.phase_share import phase_share
from curriculum.plan.checks.replay_share import replay_share
from curriculum.plan.checks.schedule_couples_phases import schedule_couples_phases
from curriculum.plan.checks.starts_from_scratch import starts_from_scratch
from curriculum.plan.checks.trailing_windows import trailing_windows
from curriculum.plan.checks.unbounded_replay import unbounded_replay
from curriculum.plan.checks.warmup_longer_than_first_phase import warmup_longer_than_first_phase

CHECKS: tuple[Callable[[CheckContext], Iterable[Finding]], ...] = (
    starts_from_scratch,
    init_missing,
    ends_on_replay,
    unbounded_replay,
    replay_share,
    phase_share,
    warmup_longer_than_first_phase,
    decay_on_replay,
    schedule_couples_phases,
    data_missing,
    data_short,
    trailing_windows,
    evals_never_due,
    idle_ranks,
)

__all__ = ["CHECKS", "CheckContext", "run_checks"]


def run_checks(context: CheckContext) -> list[Finding]:
    """All findings: errors first, then warnings, then the ignored ones."""
    found = (finding for check in CHECKS for finding in check(context))
    return ranked(found, context.config.checks.ignore)
