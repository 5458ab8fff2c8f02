"""What the audit knows of a source: a few numbers and hashes a record, never the record.

Texts are 64-bit hashes (BLAKE2b) of their exact or their normalised form; 0 means "has none".
"""

from dataclasses import dataclass, field

import numpy as np

SCHEMA_VERSION = 1
"""Part of every cache key. Raise it with any change of what is collected."""


class Flag:
    """Bits of `flags`: what is true of a record. Plain numbers, set some 100,000 times a second."""

    ABSTAINS = 1
    ANSWERABLE = 2  # says so itself
    REPEATS = 4  # holds the same text twice
    ANSWER_IN_FIELD = 8  # an extra field names an answer, and the passages hold it
    ANSWER_ELSEWHERE = 16  # another record names an answer to the same question, and they hold it
    NAMES_QUESTION = 32  # a field names the question, and a text should hold it
    HOLDS_QUESTION = 64  # and does
    ASKS = 128  # has a text in which a question is expected
    LABELLED = 256  # that text has a label such as "Question:"
    MARKED = 512  # or a question mark in its last part
    CLOSED = 1024  # or ends as a sentence does


HASHES = (
    "prompt", "prompt_exact", "pair", "pair_exact", "target", "question", "identifier", "wording",
    "last_line", "opening", "label",
)  # fmt: skip
NUMBERS = ("file_index", "number", "flags", "characters", "bytes", "words")


@dataclass(frozen=True)
class Facts:
    """Facts about the R readable records of some files, as columns of length R.

    `hashes` uint64: `prompt` (all turns before the target), `pair` (with the target and all else
    that the task reads), both also exact; `target`; `question`; `identifier` (field `id`);
    `wording` of an abstention; and of the text that should hold the question its `last_line`,
    that line's `opening` and the last `label`.
    `numbers` int64: `file_index` and `number` (line or row) of the address, `flags`, and
    `characters`, `bytes`, `words` of the text that should hold the question.
    `texts`: shortened texts of the most frequent targets and wordings, by hash. `separators`: per
    file, what an address has between name and number. `records` counts all, `bad` the unreadable.
    """

    records: int
    bad: int
    hashes: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]
    texts: dict[int, str]
    separators: list[str]
    files: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers["flags"])

    def has(self, flag: int) -> np.ndarray:
        """bool [R]: records with a flag."""
        return (self.numbers["flags"] & flag) != 0

    def address(self, place: int) -> str:
        """Where a readable record stands, as `str(Address)` says it."""
        file = int(self.numbers["file_index"][place])
        return f"{self.files[file]}{self.separators[file]}{self.numbers['number'][place]}"

    def addresses(self, chosen: np.ndarray, limit: int) -> tuple[str, ...]:
        """The first addresses of chosen records: a mask or indices."""
        places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return tuple(self.address(int(place)) for place in places[:limit])


def frequent(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct values other than 0 and their counts, most frequent first."""
    values, counts = np.unique(hashes[hashes != 0], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return values[order], counts[order]


def surplus(hashes: np.ndarray) -> np.ndarray:
    """bool [R]: records whose hash an earlier record has; 0 equals nothing."""
    _, first = np.unique(hashes, return_index=True)
    later = np.ones(len(hashes), dtype=bool)
    later[first] = False
    return later & (hashes != 0)
