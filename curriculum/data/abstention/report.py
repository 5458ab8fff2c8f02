"""What was done to a set: one dictionary, and the same as tables."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.data.abstention.build import Built
from curriculum.data.abstention.detect import RULES, shortened
from curriculum.data.abstention.options import Options

TOP = 10
_DOMINANT = 0.01  # of the targets, one paraphrase: more is worth a note


def summary(
    built: Built,
    options: Options,
    bank: Sequence[str],
    texts: tuple[Callable[[int], str], Callable[[int], str]],
) -> dict[str, Any]:
    """Everything the report says, as plain values. `texts`: old and new target of a record."""
    scan, found, choice = built.scan, built.found, built.choice
    missing, kept = found.unanswerable, choice.kept
    records, left = scan.records, int(kept.sum())
    rewritten = missing & kept
    uses = np.bincount(choice.paraphrase[choice.rewritten], minlength=len(bank))
    by_rule = {
        name: int((rewritten & (found.rule == place)).sum()) for place, name in enumerate(RULES)
    }
    return {
        "records": {
            "in": records + scan.bad.total(),
            "bad": scan.bad.total(),
            "out": left,
            "answerable": left - int(choice.rewritten.sum()),
            "unanswerable": int(choice.rewritten.sum()),
        },
        "share": {
            "asked": options.share,
            "before": int(missing.sum()) / records,
            "after": int(choice.rewritten.sum()) / left,
        },
        "found": found.counts(),
        "dropped": {"surplus unanswerable": int((missing & ~kept).sum())} | dict(scan.bad),
        "rewritten": {**by_rule, "synthesized": int(choice.synthesized.sum())},
        "dropped_fields": dict(built.dropped_fields),
        "held_share": found.held_share,
        "frequent": [vars(frequent) for frequent in found.frequent],
        "targets": {
            "before": _top(scan.target, np.flatnonzero(scan.valid), texts[0]),
            "after": _top(built.targets, np.flatnonzero(kept), texts[1]),
        },
        "paraphrases": [
            {"paraphrase": paraphrase, "records": int(count)}
            for paraphrase, count in zip(bank, uses, strict=True)
        ],
        "notes": [*found.notes, *_notes(built, uses, left)],
    }


def _top(keys: np.ndarray, rows: np.ndarray, text_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """The most frequent targets of some records; of equally frequent ones, the first to come."""
    _, firsts, counts = np.unique(keys[rows], return_index=True, return_counts=True)
    order = np.lexsort((firsts, -counts))[:TOP]
    return [
        {
            "target": text_of(int(rows[firsts[place]])),
            "records": int(counts[place]),
            "share": int(counts[place]) / len(rows),
        }
        for place in order
    ]


def _notes(built: Built, uses: np.ndarray, left: int) -> list[str]:
    notes = []
    rewritten = built.choice.rewritten
    if uses.max() > max(1, _DOMINANT * left):
        enough = int(np.ceil(rewritten.sum() / (_DOMINANT * left)))
        notes.append(
            f"each paraphrase makes up {uses.max() / left:.1%} of the records; a bank of {enough} "
            f"would keep each at {_DOMINANT:.0%}"
        )
    if bare := int((rewritten & (built.scan.held < 0)).sum()):
        notes.append(
            f"{bare} rewritten records have no passages; if the paraphrases speak of passages, "
            "give a bank that does not"
        )
    return notes


def table(report: dict[str, Any], files: Sequence[Path], out: Path) -> str:
    """The report for people."""
    records, share = report["records"], report["share"]
    lines = [
        f"{', '.join(map(str, files))} -> {out}",
        f"records        {records['in']} in, {records['out']} out",
        f"unanswerable   {share['before']:.2%} before, {share['after']:.2%} after "
        f"({records['unanswerable']} of {records['out']}; asked for {share['asked']:.2%})",
        f"found by       {_counts(report['found'])}",
        f"dropped        {_counts(report['dropped'])}",
        f"rewritten      {_counts(report['rewritten'])}",
    ]
    if report["dropped_fields"]:
        lines.append(f"fields dropped {_counts(report['dropped_fields'])}")
    for when in ("before", "after"):
        lines += ["", f"{'records':>9}  {'share':>7}  most frequent targets {when}"]
        lines += [
            f"{row['records']:>9}  {row['share']:>7.2%}  {shortened(row['target'])}"
            for row in report["targets"][when]
        ]
    lines += ["", f"{'records':>9}  paraphrase"]
    used = [row for row in report["paraphrases"] if row["records"]]
    lines += [f"{row['records']:>9}  {row['paraphrase']}" for row in used]
    return "\n".join([*lines, *_noted(report["notes"])])


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"


def _noted(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in ("", f"note: {note}")]
