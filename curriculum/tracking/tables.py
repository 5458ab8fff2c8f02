"""Tables of the ledger and of probe values, for a terminal 100 columns wide.

Every share stands under its unit, planned beside realised; what is unknown is a dash.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from curriculum.tracking.ledger import UNITS, By, Ledger, LedgerRow, total
from curriculum.tracking.speed import OTHER, PARTS, time_shares, utilisation

if TYPE_CHECKING:
    from curriculum.choice_evals.summary import Summary

WIDTH = 100
DASH = "-"


class Probed(Protocol):
    """A probe's result: whose held-out data (`phase`), and figures by metric."""

    name: str
    phase: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Change:
    """One probe metric before and after; None where that side has no such figure."""

    probe: str
    phase: str
    metric: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


def amounts_table(ledger: Ledger) -> str:
    """Steps and tokens by phase, planned and realised, with the totals."""
    header = ("phase", "status", "steps", "forward tokens", "trained", "FLOPs", "wall s", "tok/s")
    planned = {phase["name"]: phase for phase in ledger.planned}
    lines = []
    for name in _names(planned, ledger.rows):
        plan, row = planned.get(name, {}), ledger.rows.get(name)
        lines.append(
            (
                name,
                row.status if row else "not run",
                _pair(plan.get("steps"), row and row.steps),
                _pair(plan.get("forward_tokens"), row and row.forward_tokens),
                quantity(row and row.trained_tokens),
                _pair(plan.get("flops"), row and row.flops),
                DASH if row is None else _seconds(row.seconds),
                _rate(row),
            )
        )
    rows = list(ledger.rows.values())
    seconds = sum(row.seconds for row in rows)
    tokens = sum(row.forward_tokens for row in rows)
    lines.append(
        (
            "total",
            "",
            _pair(_planned_total(ledger, "steps"), sum(row.steps for row in rows)),
            _pair(_planned_total(ledger, "forward_tokens"), tokens),
            quantity(sum(row.trained_tokens for row in rows)),
            _pair(_planned_total(ledger, "flops"), total([row.flops for row in rows])),
            _seconds(seconds),
            f"{tokens / seconds:,.0f}" if seconds else DASH,
        )
    )
    notes = [
        f"recomputed tokens {quantity(sum(row.recomputed_tokens for row in rows))}",
        f"probes {sum(row.probe_seconds for row in rows):.1f} s",
        f"steps dropped as not finite {sum(row.skipped_steps for row in rows)}",
    ]
    return _table(header, lines, left=2) + "\n" + "; ".join(notes)


def speed_table(ledger: Ledger) -> str:
    """Rates, utilisation of the measured matrix-product peak, memory, and where the time went."""
    header = ("phase", "tok/s", "trained/s", "MFU %", "peak MiB")
    lines = []
    for row in ledger.rows.values():
        trained = f"{row.trained_tokens / row.seconds:,.0f}" if row.seconds else DASH
        memory = DASH if row.peak_memory is None else f"{row.peak_memory / 2**20:,.0f}"
        shares = time_shares(row)
        cells = [percent(shares.get(part)) for part in (*PARTS, OTHER)]
        lines.append((row.phase, _rate(row), trained, percent(utilisation(row)), memory, *cells))
    return _table((*header, *(f"{part} %" for part in (*PARTS, OTHER))), lines, left=1)


def share_table(ledger: Ledger, by: By) -> str:
    """Shares in percent, planned -> realised, one column a unit."""
    shares = ledger.shares(by)
    lines = []
    for name in _names(shares["planned"], shares["realised"]):
        sides = [shares[side].get(name, {}) for side in ("planned", "realised")]
        cells = [" -> ".join(percent(side.get(unit)) for side in sides) for unit in UNITS[:-1]]
        lines.append((name, *cells, percent(sides[1].get("wall"))))
    return _table((by, *UNITS), lines, left=1)


PROBES = ("held-out data", "probe", "metric", "before", "after", "difference")
CHOICE_EVALS = ("choice eval", "steps", "metric", "before", "after", "difference")


def probe_table(rows: Sequence[Change], header: Sequence[str] = PROBES) -> str:
    if not rows:
        return "no probe ran"
    lines = [
        (r.phase, r.probe, r.metric, figure(r.before), figure(r.after), figure(r.difference, True))
        for r in rows
    ]
    return _table(header, lines, left=3)


def changes(before: Iterable[Probed], after: Iterable[Probed]) -> list[Change]:
    """Every metric of either side, in order of first appearance, grouped by data and probe."""
    sides = [
        {(getattr(result, "phase", ""), result.name): dict(result.values) for result in results}
        for results in (before, after)
    ]
    found = []
    for key in _names(sides[1], sides[0]):
        phase, probe = key
        old, new = (side.get(key, {}) for side in sides)
        for metric in _names(new, old):
            found.append(Change(probe, phase, metric, old.get(metric), new.get(metric)))
    return found


def eval_changes(evals: Iterable["Summary"]) -> list[Change]:
    """Every metric of each choice eval, at its first scored step and at its last."""
    found = []
    for one in evals:
        first, last = one.steps[0], one.steps[-1]
        steps = f"{first.step} -> {last.step}"
        for metric in _names(last.metrics, first.metrics):
            values = first.metrics.get(metric), last.metrics.get(metric)
            found.append(Change(steps, one.name, metric, *values))
    return found


def quantity(value: float | None) -> str:
    """A count in full up to 10,000, else to three figures with its magnitude: 442572800 -> 443M."""
    if value is None:
        return DASH
    if abs(value) < 1e4:
        return f"{value:.4g}"
    # 999.5 and more would round to four digits.
    power = next((i for i in range(1, 8) if abs(value) < 999.5 * 1e3**i), 8)
    return f"{value / 1e3**power:.3g}{' kMGTPEZY'[power]}"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f}"


def figure(value: float | None, signed: bool = False) -> str:
    """A probe value to four figures."""
    if value is None:
        return DASH
    return f"{value:+.4g}" if signed else f"{value:.4g}"


def _names(*mappings: Iterable[Any]) -> list[Any]:
    """Keys of all mappings, each once, in order."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def _pair(planned: float | None, realised: float | None) -> str:
    return f"{quantity(planned)} -> {quantity(realised)}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value < 1e4 else f"{value:.0f}"


def _rate(row: LedgerRow | None) -> str:
    return f"{row.forward_tokens / row.seconds:,.0f}" if row is not None and row.seconds else DASH


def _planned_total(ledger: Ledger, key: str) -> float | None:
    return total([phase.get(key) for phase in ledger.planned]) if ledger.planned else None


def _table(header: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    """Aligned columns, the first `left` to the left; the first is cut to keep to `WIDTH`."""
    widths = [max(len(row[i]) for row in (header, *lines)) for i in range(len(header))]
    spare = WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = max(min(widths[0], spare), min(widths[0], 8))
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

    def line(row: Sequence[str]) -> str:
        cells = [
            _cut(cell, width).ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), rule, *map(line, lines)])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
