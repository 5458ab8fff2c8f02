"""The first pass over a set: a few numbers a record, however long the records are.

Targets are kept as 64-bit hashes of their normalised text, so that what is counted is what a model
would learn to say, whatever its case, punctuation and white space.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from curriculum.data.abstention.matcher import AbstentionMatcher, normalise
from curriculum.data.abstention.passages import holding
from curriculum.data.records import QA, BadRecord, normalised, parse
from curriculum.data.sources import Address, Source
from curriculum.errors import RunError
from curriculum.progress import Progress

UNFLAGGED, NO_PASSAGES = -1, -1
_LISTED = 20
_SHOWN_EVERY = 1000


@dataclass(frozen=True)
class Scan:
    """What is known of every record, by its index in the source; arrays of length N.

    `valid` bool; `target` uint64; `flag` int8: 1 answerable, 0 not, -1 without a flag; `held` int8:
    1 if a passage holds the answer, 0 if none does, -1 without passages; `spare` bool: passages
    remain if those that hold the answer go; `wording` bool: the target is in a bank. `bad`: how
    many records are not valid, by reason.
    """

    valid: np.ndarray
    target: np.ndarray
    flag: np.ndarray
    held: np.ndarray
    spare: np.ndarray
    wording: np.ndarray
    bad: Counter[str]

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def records(self) -> int:
        """Valid ones."""
        return int(self.valid.sum())


def scan(source: Source, matcher: AbstentionMatcher, on_bad_record: str) -> Scan:
    """Look at every record once.

    `RunError` with up to 20 bad records, one a line, unless they are to be skipped; also if none is
    left.
    """
    size = len(source)
    found = Scan(
        valid=np.zeros(size, bool),
        target=np.zeros(size, np.uint64),
        flag=np.full(size, UNFLAGGED, np.int8),
        held=np.full(size, NO_PASSAGES, np.int8),
        spare=np.zeros(size, bool),
        wording=np.zeros(size, bool),
        bad=Counter(),
    )
    complaints: list[BadRecord] = []
    for row, address, line in lines_of(source, np.arange(size), "reading"):
        try:
            record = parse("qa", line, address)
            assert isinstance(record, QA)
        except BadRecord as error:
            found.bad[error.reason] += 1
            complaints = [*complaints, error][:_LISTED]
            if on_bad_record == "error" and len(complaints) == _LISTED:
                break
            continue
        _note(found, row, record, matcher)
    if complaints and (on_bad_record == "error" or not found.valid.any()):
        raise RunError(_listed(complaints, found.valid.any()))
    return found


def lines_of(source: Source, rows: np.ndarray, doing: str) -> Iterator[tuple[int, Address, bytes]]:
    """Index, address and line of the records at `rows`; shows how far it is."""
    progress = Progress(doing, "records", len(rows))
    try:
        for start in range(0, len(rows), _SHOWN_EVERY):
            block = rows[start : start + _SHOWN_EVERY].tolist()
            for row in block:
                yield row, *source[row]
            progress.advance(len(block))
    finally:
        progress.close()


def target_key(answer: str) -> int:
    """What targets are counted by: equal for texts that differ in case, marks and spaces only."""
    said = normalise(answer) or normalised(answer)
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "little")


def _note(found: Scan, row: int, record: QA, matcher: AbstentionMatcher) -> None:
    found.valid[row] = True
    found.target[row] = target_key(record.answer)
    found.wording[row] = matcher(record.answer)
    if record.answerable is not None:
        found.flag[row] = record.answerable
    if record.passages:
        held = holding(record.answer, record.passages)
        found.held[row] = any(held)
        found.spare[row] = any(held) and not all(held)


def _listed(complaints: list[BadRecord], others: bool) -> str:
    lines = [str(error) for error in complaints]
    if len(lines) == _LISTED:
        lines.append(f"stopped after {_LISTED} bad records")
    remedy = "correct them, or leave them out by on_bad_record=skip"
    lines.append(remedy if others else "no record is a valid qa record: see the first line")
    return "\n".join(lines)
