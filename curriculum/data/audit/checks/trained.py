"""Findings about what carries loss."""

from collections.abc import Iterator

from curriculum.data.audit.checks.over_long import places
from curriculum.data.audit.context import PhaseData, of
from curriculum.data.examples import NO_TRAINED_TOKENS
from curriculum.finding import Finding


def trained_share(data: PhaseData) -> float | None:
    """Tokens that carry loss, of the prepared ones; None for retrieval, which has no such."""
    if data.windows is None or data.phase.task == "retrieval":
        return None
    chunks = data.windows.manifest.chunks
    tokens = sum(chunk.tokens for chunk in chunks)
    return sum(chunk.trained_tokens for chunk in chunks) / tokens if tokens else 0.0


def low_trained_share(data: PhaseData) -> Iterator[Finding]:
    """Warning if nearly all of the computation goes into tokens that carry no loss."""
    share = trained_share(data)
    if share and share < data.limits.min_trained_share:
        yield data.finding(
            "data/low-trained-share",
            "warning",
            f"{share:.2%} of its tokens carry loss (limit {data.limits.min_trained_share:.0%})",
            "shorten prompts or passages, or merge questions on the same passages into one "
            "conversation",
        )


def no_trained_tokens(data: PhaseData) -> Iterator[Finding]:
    """Warning for records that train nothing, error if none can."""
    task, facts = data.phase.task, data.facts
    if task in ("retrieval", "choice"):
        return
    remedy = (
        f"see that the records have assistant turns with content, and "
        f"plan.phases.{data.name}.data.loss_on"
    )
    if _without_targets(data):
        yield data.finding(
            "data/no-trained-tokens",
            "error",
            "none of its records has a target, so no token carries loss",
            remedy,
            facts.addresses(facts.hashes["target"] == 0, data.limits.examples),
        )
    elif data.windows is not None and (count := data.windows.drops.get(NO_TRAINED_TOKENS, 0)):
        yield data.finding(
            "data/no-trained-tokens",
            "warning",
            f"{of(count, data.records_read, 'records read')} train nothing and are left out",
            remedy,
            places(data, {NO_TRAINED_TOKENS: count}),
        )


def _without_targets(data: PhaseData) -> bool:
    """True if no record has a target, for tasks that train on one."""
    targets = data.facts.hashes["target"]
    return data.phase.task != "text" and len(targets) > 0 and not targets.any()
