"""`data/over-long`: records that do not fit a window as they are."""

from collections import Counter
from collections.abc import Iterator

from curriculum.data.audit.context import PhaseData, of
from curriculum.data.examples import (
    NO_SOURCE,
    OVER_LONG,
    SOURCE_SHORTENED,
    TEXT_SHORTENED,
    TOO_LONG_WITHOUT_SOURCE,
)
from curriculum.finding import Finding

_DROPS = (OVER_LONG, NO_SOURCE, TOO_LONG_WITHOUT_SOURCE)
_CUTS = (SOURCE_SHORTENED, TEXT_SHORTENED)


def over_long_counts(data: PhaseData) -> dict[str, int]:
    """Records (for retrieval also texts) cut or dropped for their length, by reason.

    Running text that is split into pieces loses nothing and is not counted.
    """
    if data.windows is None:
        return {}
    drops = {r: n for r, n in data.windows.drops.items() if r in _DROPS}
    return drops | {r: n for r, n in data.windows.cuts.items() if r in _CUTS}


def places(data: PhaseData, reasons: dict[str, int]) -> list[str]:
    """Addresses that the windows noted for these reasons."""
    found: list[str] = []
    for chunk in data.windows.manifest.chunks if data.windows else ():
        for noted in (chunk.dropped_at, chunk.cut_at):
            found += [place for reason in reasons for place in noted.get(reason, [])]
    return list(dict.fromkeys(found))


def over_long(data: PhaseData) -> Iterator[Finding]:
    """Warning if many of the records that were read had to be cut or dropped."""
    reasons = Counter(over_long_counts(data))
    total = data.records_read
    if data.phase.retrieval:
        total *= 1 + data.phase.retrieval.documents
    count = sum(reasons.values())
    if not total or count / total <= data.limits.max_over_long_share:
        return
    what = "texts" if data.phase.retrieval else "records read"
    detail = ", ".join(f"{reason}: {number:,}" for reason, number in reasons.most_common())
    yield data.finding(
        "data/over-long",
        "warning",
        f"{of(count, total, what)} do not fit seq_len={data.phase.seq_len} (limit "
        f"{data.limits.max_over_long_share:.0%}): {detail}",
        f"raise plan.phases.{data.name}.seq_len, or shorten the records",
        places(data, reasons),
    )
