"""`data/head-only`: most of a source is out of reach of the steps of its phase."""

from collections.abc import Iterator

from curriculum.data.audit.context import PhaseData, of
from curriculum.finding import Finding


def head_only(data: PhaseData) -> Iterator[Finding]:
    """Warning if the phase reads a small share of its records. A plan that is scaled down is
    judged by what it reaches at full size."""
    reached, total = data.reached, data.facts.records
    if reached is None or not total:
        return
    if reached / total / min(1.0, data.size) >= data.limits.min_reached_share:
        return
    yield data.finding(
        "data/head-only",
        "warning",
        f"its steps reach {of(reached, total)} (limit {data.limits.min_reached_share:.0%}); they "
        "come evenly from the whole source, not from its head",
        f"raise plan.phases.{data.name}.steps, or accept that the rest is not seen: "
        "checks.ignore=[data/head-only]",
    )
