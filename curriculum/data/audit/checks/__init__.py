"""One small file a finding, or a few of a kind; each check is registered by one line here."""

from collections.abc import Callable, Iterable

from curriculum.data.audit.checks.abstentions import (
    abstains_with_answer_present,
    abstention_share,
    paraphrase_imbalance,
)
from curriculum.data.audit.checks.dominant_target import dominant_target
from curriculum.data.audit.checks.duplicates import (
    duplicate_documents,
    duplicate_in_record,
    id_conflict,
)
from curriculum.data.audit.checks.head_only import head_only
from curriculum.data.audit.checks.heldout_overlap import heldout_overlap
from curriculum.data.audit.checks.over_long import over_long
from curriculum.data.audit.checks.question_truncated import question_truncated
from curriculum.data.audit.checks.trained import low_trained_share, no_trained_tokens
from curriculum.data.audit.context import PhaseData
from curriculum.finding import Finding

CHECKS: tuple[Callable[[PhaseData], Iterable[Finding]], ...] = (
    dominant_target,
    question_truncated,
    no_trained_tokens,
    over_long,
    abstains_with_answer_present,
    abstention_share,
    paraphrase_imbalance,
    head_only,
    duplicate_in_record,
    duplicate_documents,
    id_conflict,
    heldout_overlap,
    low_trained_share,
)
