"""The audit as a table for a terminal and as plain values."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.data.audit.figures import PhaseFigures
from curriculum.finding import Finding

_HEAD = (
    "phase", "task", "records", "bad", "unanswerable", "top target", "distinct", "over-long",
    "trained", "reached",
)  # fmt: skip
_SHORT_HEAD = (
    "phase",
    "task",
    "records",
    "bad",
    "unansw.",
    "top",
    "distinct",
    "long",
    "trained",
    "reached",
)
_NAMES = 2  # left-aligned columns


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
        lines = _grid(_HEAD, rows)
        if max(map(len, lines)) > width:
            lines = _grid(_SHORT_HEAD, rows)
        return "\n".join([*lines, "", *_findings(self.findings, width)])


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


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(size) if place < _NAMES else cell.rjust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _findings(findings: Sequence[Finding], width: int) -> list[str]:
    if not findings:
        return ["findings: none"]
    lines = ["findings:"]
    for finding in findings:
        where = f" ({finding.phase})" if finding.phase else ""
        message = finding.message.removeprefix(f"{finding.phase}: ")
        head = f"  {finding.severity:8}{finding.code}{where}: "
        lines += _wrapped(head + message, " " * 10, width)
        lines += _wrapped(" " * 10 + f"remedy: {finding.remedy}", " " * 18, width)
        lines += [f"{' ' * 10}e.g.    {place}" for place in finding.examples]
    return lines


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
