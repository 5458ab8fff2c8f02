"""The reliability diagram of a set as SVG: what confidence deserves, at its first and last step.

One panel a step. A bar is a bin of rows by the confidence of their highest choice: its height is
what that choice deserved on average, so a calibrated model's bars end on the diagonal. The strip
below shows how the rows spread over the bins.
"""

import logging
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from curriculum.choice_evals import storage
from curriculum.choice_evals.figures import ReliabilityBin, figures, reliability, rows_of
from curriculum.choice_evals.scorers import BINS
from curriculum.choice_evals.sets import EvalSet
from curriculum.data.packed_choice import TARGETS_FILE, read_targets
from curriculum.files import write_text

_SIDE, _GAP, _STRIP, _MARGIN, _TITLE = 240.0, 70.0, 40.0, 46.0, 40.0
_BAR, _GAP_COLOUR, _LINE = "#4269d0", "#ff725c", "#999"

log = logging.getLogger(__name__)


def draw(run_dir: Path, eval_set: EvalSet, kwargs: Mapping[str, Any]) -> Path | None:
    """Draw a set's first scored step beside its last. None without targets, or if it fails.

    `kwargs` are those of the scorer: `targets` and `bins` mean here what they mean there.
    """
    targets = Path(kwargs.get("targets") or eval_set.directory / TARGETS_FILE)
    bins = kwargs.get("bins", BINS)
    if not targets.is_file() or not isinstance(bins, int):
        return None
    scored = [
        directory
        for directory in storage.steps(run_dir)
        if directory.parent.name == eval_set.name and storage.read_metrics(directory) is not None
    ]
    path = storage.diagram_file(run_dir, eval_set.name)
    try:
        panels = [
            _panel(place, directory, targets, bins)
            for place, directory in enumerate(dict.fromkeys([*scored[:1], *scored[-1:]]))
        ]
        width = _MARGIN + len(panels) * (_SIDE + _GAP)
        height = _TITLE + _SIDE + _STRIP + 56
        write_text(
            path,
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" '
            f'aria-label="reliability diagram of {escape(eval_set.name)}" '
            f'font-family="system-ui,sans-serif" font-size="11" fill="#444">\n'
            f'<rect width="100%" height="100%" fill="#fff"/>\n{"".join(panels)}'
            f'<text x="{_MARGIN:g}" y="{height - 14:g}">bars: what the highest choice '
            "deserved; red: mean confidence; below: rows</text>\n</svg>\n",
        )
    except Exception as error:  # targets or logits of a kind that cannot be drawn stop no run
        log.warning("choice eval %s: no reliability diagram: %s", eval_set.name, error)
        return None
    return path


def _panel(place: int, directory: Path, targets: Path, bins: int) -> str:
    found, origin = storage.read_predictions(directory)
    rows = rows_of(found.logits, found.counts, read_targets(targets, found.counts))
    values = figures(rows, bins)
    title = f"step {origin.step}"
    told = f"accuracy {values['accuracy']:.3f}, calibration error {values['ece']:.3f}"
    left = _MARGIN + place * (_SIDE + _GAP)
    drawn = _drawn(reliability(rows, bins), title, told)
    return f'<g transform="translate({left:g} 0)">\n{drawn}</g>\n'


def _drawn(parts: Sequence[ReliabilityBin], title: str, told: str) -> str:
    base = _TITLE + _SIDE
    most = max(part.rows for part in parts)
    marks = [
        f'<text x="0" y="14" font-size="13" font-weight="600">{escape(title)}</text>',
        f'<text x="0" y="30">{escape(told)}</text>',
        f'<rect x="0" y="{_TITLE:g}" width="{_SIDE:g}" height="{_SIDE:g}" fill="none" '
        f'stroke="{_LINE}"/>',
    ]
    for part in parts:
        x, wide = part.low * _SIDE, (part.high - part.low) * _SIDE
        high, sure = part.deserved * _SIDE, part.confidence * _SIDE
        tall = part.rows / most * _STRIP
        note = f"confidence {part.confidence:.3f}, deserved {part.deserved:.3f}, {part.rows} rows"
        marks += [
            f'<rect x="{x:.1f}" y="{base - high:.1f}" width="{wide - 1:.1f}" height="{high:.1f}" '
            f'fill="{_BAR}"><title>{note}</title></rect>',
            f'<line x1="{x:.1f}" x2="{x + wide - 1:.1f}" y1="{base - sure:.1f}" '
            f'y2="{base - sure:.1f}" stroke="{_GAP_COLOUR}" stroke-width="2"/>',
            f'<rect x="{x:.1f}" y="{base + 8 + _STRIP - tall:.1f}" width="{wide - 1:.1f}" '
            f'height="{tall:.1f}" fill="{_LINE}"><title>{part.rows} rows</title></rect>',
        ]
    below = base + 8 + _STRIP
    return "\n".join(
        [
            *marks,
            f'<line x1="0" y1="{base:g}" x2="{_SIDE:g}" y2="{_TITLE:g}" stroke="{_LINE}" '
            'stroke-dasharray="4 3"/>',
            f'<text x="0" y="{below + 14:g}">0</text>',
            f'<text x="{_SIDE:g}" y="{below + 14:g}" text-anchor="end">1</text>',
            f'<text x="{_SIDE / 2:g}" y="{below + 14:g}" text-anchor="middle">confidence</text>',
            f'<text x="-6" y="{base:g}" text-anchor="end">0</text>',
            f'<text x="-6" y="{_TITLE + 8:g}" text-anchor="end">1</text>\n',
        ]
    )
