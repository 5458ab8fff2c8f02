"""Inline SVG of a report: loss by phase, and compute shares planned beside realised."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from curriculum.tracking.ledger import UNITS, Ledger
from curriculum.tracking.tables import percent

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5")
POINTS = 600
CHART = (920.0, 260.0)
MARGIN = 46.0
UNIT_NAMES = {"nominal": "nominal tokens", "forward": "forward tokens", "flops": "FLOPs"}


def phase_colours(names: Sequence[str]) -> dict[str, str]:
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def legend(colours: Mapping[str, str]) -> str:
    keys = (
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in colours.items()
    )
    return f"<p>{''.join(keys)}</p>"


def loss_chart(metrics: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> str:
    """One line a phase over global steps; means of equal buckets where there are many steps."""
    points = [(r["step"], r["phase"], r["loss"]) for r in metrics if r["loss"] is not None]
    if not points:
        return "<p>No step has been logged.</p>"
    width, height = CHART
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    top = max(p[2] for p in points) or 1.0
    bucket = max(1, -(-len(points) // POINTS))

    def place(step: float, loss: float) -> str:
        x = MARGIN + (width - MARGIN) * ((step - first) / (last - first) if last > first else 0.5)
        return f"{x:.1f},{(height - 24) * (1 - loss / top) + 4:.1f}"

    lines = []
    for name, colour in colours.items():
        own = [(step, loss) for step, phase, loss in points if phase == name]
        groups = [own[i : i + bucket] for i in range(0, len(own), bucket)]
        path = " ".join(
            place(sum(s for s, _ in g) / len(g), sum(v for _, v in g) / len(g)) for g in groups
        )
        if path:
            lines.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5">'
                f"<title>{escape(name)}</title></polyline>"
            )
    base = height - 20
    axes = (
        f'<line x1="{MARGIN}" y1="{base}" x2="{width}" y2="{base}" stroke="#999"/>'
        f'<line x1="{MARGIN}" y1="4" x2="{MARGIN}" y2="{base}" stroke="#999"/>'
        f'<text x="{MARGIN - 6}" y="12" text-anchor="end">{top:.3g}</text>'
        f'<text x="{MARGIN - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{MARGIN}" y="{height - 5}">step {first}</text>'
        f'<text x="{width}" y="{height - 5}" text-anchor="end">step {last}</text>'
    )
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="loss by phase">'
        f"{axes}{''.join(lines)}</svg>"
    )


def share_bars(ledger: Ledger, colours: Mapping[str, str]) -> str:
    """Two stacked bars a unit; a unit that is unknown for a side has no bar there."""
    shares = ledger.shares("phase")
    width, left, high = CHART[0], 170.0, 18.0
    bars, y = [], 0.0
    for unit in UNITS:
        for side in ("planned", "realised"):
            parts = [(name, units[unit]) for name, units in shares[side].items()]
            known = [(name, share) for name, share in parts if share is not None]
            if not known:
                continue
            label = f"{UNIT_NAMES.get(unit, unit)}, {side}"
            bars.append(
                f'<text x="{left - 8}" y="{y + 13:g}" text-anchor="end">{escape(label)}</text>'
            )
            x = left
            for name, share in known:
                size = (width - left) * share
                bars.append(
                    f'<rect x="{x:.1f}" y="{y:g}" width="{size:.1f}" height="{high - 3:g}" '
                    f'fill="{colours.get(name, COLOURS[0])}">'
                    f"<title>{escape(name)}: {percent(share)}% of {escape(label)}</title></rect>"
                )
                x += size
            y += high
        y += 6
    if not bars:
        return "<p>Nothing has been planned or done.</p>"
    return (
        f'<svg viewBox="0 0 {width:g} {y:g}" role="img" aria-label="compute share by phase">'
        f"{''.join(bars)}</svg>"
    )
