"""What a run shows at its end: tables on the terminal, and `report.html`.

The page is one file with inline CSS and SVG: it opens years later, without a network.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.files import write_bytes
from curriculum.tracking.charts import legend, loss_chart, phase_colours, share_bars
from curriculum.tracking.ledger import Ledger
from curriculum.tracking.tables import (
    CHOICE_EVALS,
    PROBES,
    Change,
    Probed,
    amounts_table,
    changes,
    eval_changes,
    figure,
    probe_table,
    share_table,
    speed_table,
)

if TYPE_CHECKING:
    from curriculum.choice_evals.summary import Summary

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#222}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}
td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}
pre{overflow-x:auto;background:#f6f6f6;padding:1rem;font-size:12px;line-height:1.35}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#444}
.diagram svg{width:auto;max-width:100%}
.key{display:inline-block;margin-right:1rem}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
"""


def end_tables(
    ledger: Ledger,
    before: Sequence[Probed],
    after: Sequence[Probed],
    evals: Sequence["Summary"] = (),
) -> str:
    """The text of a run's end, at most 100 columns: amounts by phase; shares by phase, role and
    objective; probe values before and after; choice evals at their first step and at their last."""
    parts = [
        "Compute by phase: planned -> realised\n" + amounts_table(ledger),
        "Speed by phase (MFU: model FLOP utilisation of the measured matrix-product peak)\n"
        + speed_table(ledger),
        "Compute share in %: planned -> realised, each unit on its own (wall: realised alone)\n"
        + "\n\n".join(share_table(ledger, by) for by in ("phase", "role", "objective")),
        "Probes: before -> after\n" + probe_table(changes(before, after)),
    ]
    if rows := eval_changes(evals):
        parts.append("Choice evals: first -> last\n" + probe_table(rows, CHOICE_EVALS))
    return "\n\n".join(parts) + "\n"


def write_html(
    path: Path,
    *,
    title: str,
    ledger: Ledger,
    metrics: Sequence[Mapping[str, Any]],
    before: Sequence[Probed],
    after: Sequence[Probed],
    evals: Sequence["Summary"] = (),
) -> None:
    """Write the page. `metrics` are rows of `metrics.jsonl`; anything may be empty."""
    phases = list(
        dict.fromkeys(
            [*(phase["name"] for phase in ledger.planned), *(row["phase"] for row in metrics)]
        )
    )
    colours = phase_colours(phases)
    tables = "\n\n".join(
        [
            amounts_table(ledger),
            speed_table(ledger),
            *(share_table(ledger, by) for by in ("phase", "role", "objective")),
        ]
    )
    body = [
        f"<h1>{escape(title)}</h1>",
        legend(colours),
        "<h2>Loss by phase</h2>",
        loss_chart(metrics, colours),
        "<h2>Compute share by phase, planned and realised</h2>",
        share_bars(ledger, colours),
        "<h2>Probes, before and after</h2>",
        _probe_rows(changes(before, after)),
        *_choice_evals(evals),
        "<h2>Ledger</h2>",
        f"<pre>{escape(tables)}</pre>",
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )
    write_bytes(path, page.encode())


def _choice_evals(evals: Sequence["Summary"]) -> list[str]:
    """Nothing where there are none; else the table and a reliability diagram for each set."""
    rows = eval_changes(evals)
    if not evals:
        return []
    diagrams = [f'<div class="diagram">{one.diagram}</div>' for one in evals if one.diagram]
    table = _probe_rows(rows, CHOICE_EVALS) if rows else "<p>No scorer is named.</p>"
    return ["<h2>Choice evals, first and last</h2>", table, *diagrams]


def _probe_rows(rows: Sequence[Change], header: Sequence[str] = PROBES) -> str:
    if not rows:
        return "<p>No probe ran.</p>"
    cells = [
        (r.phase, r.probe, r.metric, figure(r.before), figure(r.after), figure(r.difference, True))
        for r in rows
    ]
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = (
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
    )
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"
