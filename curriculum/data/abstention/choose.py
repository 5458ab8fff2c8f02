"""What becomes of every record: which are left out, which lose passages, and who says what.

All choices follow from the seed and from the order of the records. Those that are taken or left out
come evenly from the whole file.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from curriculum.data.abstention.bank import assign
from curriculum.data.abstention.detect import Detection
from curriculum.data.abstention.options import Options
from curriculum.data.abstention.scan import Scan
from curriculum.data.abstention.slots import entity_of
from curriculum.errors import RunError


@dataclass(frozen=True)
class Choice:
    """`kept`: bool per record. `synthesized`: bool per record, kept without the passages that hold
    the answer. `paraphrase`: int32 per record, index into the bank, -1 where the target stays."""

    kept: np.ndarray
    synthesized: np.ndarray
    paraphrase: np.ndarray

    @property
    def rewritten(self) -> np.ndarray:
        """Bool per record: what is unanswerable in the new set."""
        return self.paraphrase >= 0


def choose(
    scan: Scan,
    found: Detection,
    options: Options,
    bank: tuple[str, ...],
    question_of: Callable[[int], str],
) -> Choice:
    """Bring the share of unanswerable records to `options.share`, to the nearest record.

    Surplus ones are left out; where there are too few, answerable ones are made unanswerable if
    `options.synthesize`. `RunError` with the figures and the remedy if that cannot be done.
    """
    missing = found.unanswerable
    kept, synthesized = scan.valid.copy(), np.zeros(len(scan), bool)
    unanswerable, records = int(missing.sum()), scan.records
    if unanswerable == records:
        raise RunError(
            f"share={options.share:g} cannot be reached: all {records} records are unanswerable; "
            "add answerable ones, or correct their flags"
        )
    if unanswerable > options.share * records:
        wanted = _wanted(records - unanswerable, options.share)
        rows = np.flatnonzero(missing)
        kept[rows] = False
        kept[rows[_evenly(len(rows), min(wanted, len(rows)), _stream(options, "keep"))]] = True
    else:
        lacking = round(options.share * records) - unanswerable
        rows = np.flatnonzero(_can_lose_passages(scan, found))
        if lacking > 0:
            _check_enough(scan, unanswerable, lacking, len(rows), options)
        taken = _evenly(len(rows), max(lacking, 0), _stream(options, "synthesize"))
        synthesized[rows[taken]] = True
    paraphrase = np.full(len(scan), -1, np.int32)
    rows = np.flatnonzero((missing & kept) | synthesized)
    named = np.array([entity_of(question_of(row)) is not None for row in rows.tolist()], bool)
    paraphrase[rows] = _assigned(named, bank, options)
    return Choice(kept, synthesized, paraphrase)


def _wanted(answerable: int, share: float) -> int:
    """How many unanswerable ones, beside these, make up the share."""
    return round(share * answerable / (1 - share))


def _can_lose_passages(scan: Scan, found: Detection) -> np.ndarray:
    """Answerable, some passage holds the answer, another does not, and the answer is no label."""
    return scan.valid & ~found.unanswerable & ~found.labels & scan.spare


def _check_enough(
    scan: Scan, unanswerable: int, lacking: int, possible: int, options: Options
) -> None:
    if options.synthesize and possible >= lacking:
        return
    records = scan.records
    message = (
        f"share={options.share:g} cannot be reached: {unanswerable} of {records} records are "
        f"unanswerable ({unanswerable / records:.2%}), {unanswerable + lacking} would be needed"
    )
    makeable = (
        f"{possible} answerable ones have a passage that holds the answer and one that does not"
    )
    most, remedy = unanswerable, ""
    if options.synthesize:
        most, message = unanswerable + possible, f"{message}, and only {makeable}"
    elif possible:
        remedy = f"make some by synthesize=true ({makeable}), or "
    reachable = int(most / records * 10_000) / 10_000  # rounded down, so that it can be had
    raise RunError(f"{message}; {remedy}ask for at most share={reachable:g}")


def _evenly(size: int, count: int, rng: random.Random) -> np.ndarray:
    """`count` of `size` places in order, one drawn from each of `count` equal stretches."""
    edges = [size * place // count for place in range(count + 1)] if count else [0]
    return np.array([rng.randrange(start, end) for start, end in pairwise(edges)], np.int64)


def _assigned(named: np.ndarray, bank: tuple[str, ...], options: Options) -> np.ndarray:
    """An index into the bank for each record, each used equally often up to one.

    Paraphrases that name an entity go to questions that have one, as far as these suffice: two
    records swap theirs, so the balance stays.
    """
    rng = _stream(options, "assign")
    place = {paraphrase: number for number, paraphrase in enumerate(bank)}
    chosen = np.array([place[p] for p in assign(len(named), rng, bank)], np.int32)
    naming = np.array(["{entity}" in paraphrase for paraphrase in bank])[chosen]
    misplaced = np.flatnonzero(naming & ~named).tolist()
    able = np.flatnonzero(~naming & named).tolist()
    rng.shuffle(misplaced)
    rng.shuffle(able)
    for one, other in zip(misplaced, able, strict=False):
        chosen[[one, other]] = chosen[[other, one]]
    return chosen


def _stream(options: Options, purpose: str) -> random.Random:
    return random.Random(f"abstain/{options.seed}/{purpose}")
