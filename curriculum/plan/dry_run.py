"""What `dry_run=true` shows: one row a phase, totals by role and objective, findings."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from curriculum.config import Config
from curriculum.finding import Finding
from curriculum.plan.budget import Budget, PhaseBudget
from curriculum.plan.ranks import Ranks
from curriculum.plan.scale import shown
from curriculum.terminal import finding_lines, grid


@dataclass(frozen=True)
class DryRun:
    """`config` is as composed, so that the table can show `1800 x 0.1 = 180`.

    `ready` is what a run uses: scaled, and with the steps of phases measured in epochs as far as
    their data is known. `ranks`: where `engine.world_size` is stated.
    """

    config: Config
    ready: Config
    budget: Budget
    findings: list[Finding]
    ranks: Ranks | None = None

    @property
    def plan(self) -> str:
        """Name of the plan."""
        return self.config.plan.name

    @property
    def profile(self) -> str:
        """Name of the profile."""
        return self.config.profile.name

    @property
    def ok(self) -> bool:
        """True if no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)

    def with_cached(self, cached: Collection[str]) -> "DryRun":
        """The same, with these phases marked as finished before."""
        return replace(self, budget=self.budget.with_cached(cached))

    def to_json(self) -> dict[str, Any]:
        """Plain values: plan, profile, phases, totals, findings, and `ranks` where their number is
        stated. What is unknown is None."""
        return {
            "plan": self.plan,
            "profile": self.profile,
            **self.budget.to_json(),
            **({} if self.ranks is None else {"ranks": self.ranks.to_json(self._left)}),
            "findings": [finding.to_json() for finding in self.findings],
        }

    def table(self, width: int = 100) -> str:
        """Text in blocks between blank lines, at most `width` wide where names allow."""
        blocks = [
            self._head(),
            grid(_PLAN_HEAD, [_plan_row(i, row) for i, row in self._rows()], width),
            grid(_COST_HEAD, [_cost_row(i, row) for i, row in self._rows()], width),
            grid(_TOTAL_HEAD, list(_total_rows(self.budget.totals)), width),
            self._scale(width),
            _notes(self.budget),
            "" if self.ranks is None else self.ranks.table(self._left, width),
            "\n".join(finding_lines(self.findings, width)),
        ]
        return "\n\n".join(block for block in blocks if block)

    @property
    def _left(self) -> list[str]:
        return [row.name for row in self.budget.phases if not row.cached]

    def _rows(self) -> Iterator[tuple[int, PhaseBudget]]:
        return enumerate(self.budget.phases, start=1)

    def _head(self) -> str:
        config, totals = self.config, self.budget.totals
        return (
            f"plan {self.plan}, profile {self.profile}: {totals['phases']} phases, "
            f"{_count(totals['steps'])} steps, {_count(totals['nominal_tokens'])} nominal tokens\n"
            f"model {config.model.name}, from {config.plan.init_from or '(not given)'}\n"
            f"learning rate {config.optim.lr:g}, {_schedule(config)}"
        )

    def _scale(self, width: int) -> str:
        scale, phases = self.config.budget.scale, self.config.plan.phases
        if scale.steps == scale.batch_size == scale.seq_len == 1:
            return ""
        rows = []
        for number, row in self._rows():
            phase = phases[row.name]
            steps = phase.steps if phase.steps is not None else phase.max_steps
            rows.append(
                [
                    str(number),
                    row.name,
                    "?" if steps is None else shown(steps, scale.steps),
                    shown(phase.batch_size, scale.batch_size),
                    shown(phase.seq_len, scale.seq_len),
                ]
            )
        return grid(("#", "<scale", "steps", "batch_size", "seq_len"), rows, width)


_PLAN_HEAD = (
    "#", "<phase", "<role", "<objective", "steps", "batch", "seq_len", "lr start", "lr end",
    "<state",
)  # fmt: skip
_COST_HEAD = (
    "#", "<phase", "nominal", "share", "forward", "share", "windows", "available", "FLOPs", "share"
)  # fmt: skip
_TOTAL_HEAD = (
    "<total", "steps", "share", "nominal", "share", "forward", "share", "FLOPs", "share"
)  # fmt: skip


def _plan_row(number: int, row: PhaseBudget) -> list[str]:
    trains = row.batch_size is not None
    return [
        str(number),
        row.name,
        row.role,
        row.objective,
        _count(row.steps),
        _count(row.batch_size) if trains else "-",
        _count(row.seq_len) if trains else "-",
        _figure(row.lr_start) if trains else "-",
        _figure(row.lr_end) if trains else "-",
        "cached" if row.cached else "to run",
    ]


def _cost_row(number: int, row: PhaseBudget) -> list[str]:
    bound = "" if row.forward_exact or row.forward_tokens is None else "<="
    at_least = "" if row.windows_exact or row.windows_available is None else ">="
    return [
        str(number),
        row.name,
        _count(row.nominal_tokens),
        _percent(row.share["nominal"]),
        bound + _count(row.forward_tokens),
        _percent(row.share["forward"]),
        _count(row.windows_needed),
        "-" if row.batch_size is None else at_least + _count(row.windows_available),
        _figure(row.flops),
        _percent(row.share["flops"]),
    ]


def _total_rows(totals: Mapping[str, Any]) -> Iterator[list[str]]:
    for group in ("by_role", "by_objective"):
        for name, sums in totals[group].items():
            yield _total_row(f"{group[3:]} {name}", sums, sums["share"])
    yield _total_row("all", totals, {})
    left = totals["left"]
    share = left["share"] if left["phases"] < totals["phases"] else {}
    yield _total_row(f"to run ({left['phases']} phases)", left, share)


def _total_row(name: str, sums: Mapping[str, Any], share: Mapping[str, float | None]) -> list[str]:
    cells = [name]
    for unit, column in (
        ("steps", "steps"),
        ("nominal", "nominal_tokens"),
        ("forward", "forward_tokens"),
        ("flops", "flops"),
    ):
        value = sums[column]
        cells.append(_figure(value) if unit == "flops" else _count(value))
        cells.append(_percent(share[unit]) if share else "")
    return cells


def _schedule(config: Config) -> str:
    schedule, factor = config.schedule, config.budget.scale.steps
    parts = [f"{schedule.kind} over the {schedule.scope}"]
    parts.append(f"warm-up {shown(schedule.warmup_steps, factor)} steps")
    if schedule.kind == "wsd":
        parts.append(f"decay {shown(schedule.decay_steps, factor)} steps")
    if schedule.kind != "constant":
        parts.append(f"to {schedule.min_ratio:g} of the peak")
    return ", ".join(parts)


def _notes(budget: Budget) -> str:
    rows = budget.phases
    notes = [
        "nominal and forward in tokens; windows that the phase needs, and how many are available"
    ]
    if any(not row.forward_exact and row.forward_tokens is not None for row in rows):
        notes.append("<= upper bound: exact once the data is prepared (dry_run=data)")
    if any(row.windows_available is not None and not row.windows_exact for row in rows):
        notes.append(">= lower bound: the source holds more than was prepared")
    return "\n".join(notes)


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.2e}"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:.2%}"
