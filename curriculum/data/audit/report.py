"""The audit as a table for a terminal and as plain values."""

from dataclasses import dataclass
from typing import Any

from curriculum.data.audit.figures import PhaseFigures
from curriculum.finding import Finding
from curriculum.terminal import finding_lines, grid

_HEAD = (
    "<phase", "<task", "records", "bad", "unanswerable", "top target", "distinct", "over-long",
    "trained", "reached",
)  # fmt: skip
_SHORT_HEAD = (
    "<phase",
    "<task",
    "records",
    "bad",
    "unansw.",
    "top",
    "distinct",
    "long",
    "trained",
    "reached",
)


@dataclass(frozen=True)
class AuditReport:
    """Figures of the phases that have data, in the order of the plan, and findings by severity."""

    plan: str
    profile: str
    phases: list[PhaseFigures]
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """`{"plan", "profile", "phases": [figures], "findings": [...]}`; unknown is None."""
        return {
            "plan": self.plan,
            "profile": self.profile,
            "phases": [row.to_json() for row in self.phases],
            "findings": [finding.to_json() for finding in self.findings],
        }

    def table(self, width: int = 100) -> str:
        """One row a phase, then one block a finding, `width` wide where names allow."""
        rows = [_row(row) for row in self.phases]
        table = grid(_HEAD, rows, None)
        if max(map(len, table.splitlines())) > width:
            table = grid(_SHORT_HEAD, rows, None)
        return "\n".join([table, "", *finding_lines(self.findings, width)])


def _row(row: PhaseFigures) -> list[str]:
    shares = (row.over_long, row.trained, row.reached)
    return [
        row.name,
        row.task,
        f"{row.records:,}",
        f"{row.bad:,}",
        _percent(row.unanswerable),
        _percent(row.top_target),
        "-" if row.distinct_targets is None else f"{row.distinct_targets:,}",
        *map(_percent, shares),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
