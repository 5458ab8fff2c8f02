"""The figures of a phase's data, for table and JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from curriculum.data.audit.checks.over_long import over_long_counts
from curriculum.data.audit.checks.trained import trained_share
from curriculum.data.audit.context import PhaseData
from curriculum.data.audit.facts import Flag, frequent


@dataclass(frozen=True)
class PhaseFigures:
    """`records` of the files, of which `bad` cannot be read; shares lie in 0..1; None is unknown.

    `unanswerable`: of the readable records. `over_long`: of the records read for the windows.
    `trained`: of the prepared tokens. `reached`: of the records, within the steps of the phase.
    """

    name: str
    task: str
    records: int
    bad: int
    unanswerable: float | None
    top_target: float | None
    distinct_targets: int | None
    over_long: float | None
    trained: float | None
    reached: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(data: PhaseData) -> PhaseFigures:
    """The figures of one phase."""
    facts = data.facts
    _, counts = frequent(facts.hashes["target"])
    read = data.records_read * (1 + data.phase.retrieval.documents if data.phase.retrieval else 1)
    reached = data.reached
    has_targets = len(counts) > 0
    return PhaseFigures(
        name=data.name,
        task=data.phase.task,
        records=facts.records,
        bad=facts.bad,
        unanswerable=float(facts.has(Flag.ABSTAINS).mean()) if has_targets else None,
        top_target=int(counts[0]) / int(counts.sum()) if has_targets else None,
        distinct_targets=len(counts) if has_targets else None,
        over_long=sum(over_long_counts(data).values()) / read if read else None,
        trained=trained_share(data),
        reached=reached / facts.records if reached is not None and facts.records else None,
    )
