"""Which records are unanswerable, by which rule; every record by the first that applies.

    flag      `answerable: false`. A flag settles a record: `answerable: true` is never overruled.
    named     the target is the one that the option `abstention` gives
    wording   the target is a paraphrase of a known bank, or of the bank in use, and no passage
              says the same
    dominant  the target is shared by many, most of its records do not hold it in their passages,
              and it reads as an abstention; or none does, and it is a sentence far more frequent
              than any other target
    absent    no passage holds the target, in a set where nearly all others do

A target that many records share and that is not an abstention is a label (yes, no, a class): it is
never rewritten, by whichever rule, and does not count for how extractive a set is.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from curriculum.data.abstention.matcher import normalise
from curriculum.data.abstention.options import Options
from curriculum.data.abstention.scan import NO_PASSAGES, UNFLAGGED, Scan, target_key

RULES = ("flag", "named", "wording", "dominant", "absent")
_FEWEST = 3  # that share a target before it can dominate: in a small set, a share says little
_JUDGED = 200  # targets at most, the most frequent ones
_SENTENCE_WORDS = 4
_LABELS = ("yes", "no", "true", "false")
_OPENS_WITH_LABEL = re.compile(r"\s*(?:yes|no|true|false)\s*(?:[,.;:!?—–-]|$)", re.IGNORECASE)
_LONGEST_ABSTENTION = 40
# In normalised text, where "don't" is "don t".
_ALONE = frozenset(
    [
        "unanswerable",
        "unknown",
        "n a",
        "not applicable",
        "not available",
        "no answer",
        "i don t know",
    ]
)
_DENIES = re.compile(
    r"\b(?:not|no|nothing|none|nowhere|never|neither|nor|cannot|can t|\w+n t|unable|impossible"
    r"|lacks?|lacking|insufficient|without|missing|absent|unanswerable|unknown|unclear"
    r"|unspecified|unstated|fails?)\b"
)
_KNOWS = re.compile(
    r"\b(?:answer\w*|unanswerable|inform\w*|context\w*|passages?|texts?|documents?|sources?"
    r"|articles?|paragraphs?|excerpts?|know\w*|unknown|says?|said|stated?|unstated|mention\w*"
    r"|given|provide\w*|specif\w*|unspecified|determine\w*|tells?|told|contain\w*|find|found"
    r"|enough|sufficient|insufficient|available|cover\w*|address\w*)\b"
)
# "The answer is no", "The claim is not supported by the text": labels in the form of a sentence.
_JUDGES = re.compile(
    r"\b(?:yes|true|false|correct|incorrect|right|wrong|support\w*|refut\w*|contradict\w*|entail\w*"
    r"|claims?|agree\w*)\b|\bno$"
)


@dataclass(frozen=True)
class Frequent:
    """A target that many records share: how many, and what it was taken for."""

    text: str
    records: int
    share: float
    verdict: str


@dataclass
class Detection:
    """`rule` int8 per record: index into `RULES`, -1 where answerable. `labels` bool: the target is
    a label. `frequent`: the targets that were judged. `held_share`: of the records that the last
    rule was about, None without any.
    """

    rule: np.ndarray
    labels: np.ndarray
    frequent: list[Frequent] = field(default_factory=list)
    held_share: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def unanswerable(self) -> np.ndarray:
        """Bool per record."""
        return self.rule >= 0

    def counts(self) -> dict[str, int]:
        """Records found by each rule."""
        return {name: int((self.rule == place).sum()) for place, name in enumerate(RULES)}


def detect(scan: Scan, options: Options, text_of: Callable[[int], str]) -> Detection:
    """Judge every record. `text_of(row)` gives the target of a record as it stands."""
    found = Detection(np.full(len(scan), -1, np.int8), np.zeros(len(scan), bool))
    found.rule[scan.flag == 0] = RULES.index("flag")
    open_ = scan.valid & (scan.flag == UNFLAGGED)  # what no rule has settled yet
    if options.abstention is not None:
        _settle(found, open_, "named", scan.target == np.uint64(target_key(options.abstention)))
    _settle(found, open_, "wording", scan.wording & (scan.held != 1))
    found.labels = _judge_frequent(scan, options, text_of, found, open_)
    _judge_absent(scan, options, found, open_)
    _contradictions(scan, found)
    return found


def resembles_abstention(text: str) -> bool:
    """Whether a text of a few dozen words denies that something is known, said or found (English).

    Coarse: meant for targets that are suspect already, because many records share them.
    """
    said = normalise(text)
    if said in _ALONE:
        return True
    if _OPENS_WITH_LABEL.match(text) or len(said.split()) > _LONGEST_ABSTENTION:
        return False
    return bool(_DENIES.search(said) and _KNOWS.search(said) and not _JUDGES.search(said))


def _settle(found: Detection, open_: np.ndarray, rule: str, where: np.ndarray) -> None:
    found.rule[open_ & where] = RULES.index(rule)
    open_ &= ~where


def _judge_frequent(
    scan: Scan,
    options: Options,
    text_of: Callable[[int], str],
    found: Detection,
    open_: np.ndarray,
) -> np.ndarray:
    """Settle the records of dominant targets; the others of the frequent ones are labels (bool)."""
    labels = np.isin(scan.target, np.array([target_key(name) for name in _LABELS], np.uint64))
    fewest = max(_FEWEST, options.dominant_share * scan.records)
    ranked = list(_ranked(scan, open_))
    texts = [text_of(first) for _, count, first in ranked if count >= fewest]
    # Once the set's abstention is known, a frequent sentence beside it is something else.
    known = (found.rule > RULES.index("flag")).sum() >= fewest or any(
        map(resembles_abstention, texts)
    )
    for place, text in enumerate(texts):
        key, count, _ = ranked[place]
        where = open_ & (scan.target == key)
        rival = ranked[1 if place == 0 else 0][1] if len(ranked) > 1 else 1
        ratio = 0.0 if known else count / rival
        verdict = _verdict(scan, options, text, where, ratio)
        found.frequent.append(Frequent(text, count, count / scan.records, verdict))
        if verdict.startswith("abstention"):
            _settle(found, open_, "dominant", where)
        elif verdict.startswith("label"):
            labels |= where
    left = [frequent for frequent in found.frequent if frequent.verdict.startswith("label")]
    if left:
        others = f" ({len(left) - 1} others like it)" if len(left) > 1 else ""
        found.notes.append(
            f"target {shortened(left[0].text)!r} of {left[0].records} records "
            f"({left[0].share:.1%}) is left alone{others}: {left[0].verdict}; if it is an "
            "abstention, say so by abstention='...'"
        )
    return labels


def _ranked(scan: Scan, open_: np.ndarray) -> Iterator[tuple[np.uint64, int, int]]:
    """The most frequent targets of the open records, in order: key, count, first row."""
    rows = np.flatnonzero(open_)
    keys, firsts, counts = np.unique(scan.target[rows], return_index=True, return_counts=True)
    for place in np.lexsort((firsts, -counts))[:_JUDGED]:
        yield keys[place], int(counts[place]), int(rows[firsts[place]])


def _verdict(scan: Scan, options: Options, text: str, where: np.ndarray, ratio: float) -> str:
    """What a frequent target is, with the reason."""
    if options.dominant == "false":
        return "label: dominant=false"
    with_passages = where & (scan.held != NO_PASSAGES)
    held = (scan.held[with_passages] == 1).mean() if with_passages.any() else 0.0
    if held >= 0.5:
        return f"answer: {held:.0%} of its records hold it in their passages"
    if resembles_abstention(text):
        return "abstention: it says that the answer is not known"
    if _OPENS_WITH_LABEL.match(text) or _words(text) < _SENTENCE_WORDS:
        return "label: an ordinary short answer"
    if not with_passages.any():
        return "label: without passages nothing says that the answer is missing"
    if ratio == 0:
        return "label: a sentence beside the known abstention"
    if ratio < options.dominant_ratio:
        return f"label: {ratio:.3g} times another one, dominant_ratio={options.dominant_ratio:g}"
    return f"abstention: a sentence {ratio:.3g} times as frequent as any other target"


def _words(text: str) -> int:
    """Words; two characters of a script without spaces count as one."""
    wide = sum(unicodedata.east_asian_width(letter) == "W" for letter in text)
    return max(len(normalise(text).split()), wide // 2)


def _judge_absent(scan: Scan, options: Options, found: Detection, open_: np.ndarray) -> None:
    about = open_ & ~found.labels & (scan.held != NO_PASSAGES)
    if options.absent == "false" or not about.any():
        return
    missing = about & (scan.held == 0)
    found.held_share = 1 - int(missing.sum()) / int(about.sum())
    if options.absent == "true" or found.held_share >= options.extractive_share:
        _settle(found, open_, "absent", missing)
    elif missing.any():
        found.notes.append(
            f"answers that no passage holds were not taken as a sign: only {found.held_share:.1%} "
            f"of {int(about.sum())} records hold theirs (extractive_share="
            f"{options.extractive_share:g}); absent=true takes them as one all the same"
        )


def _contradictions(scan: Scan, found: Detection) -> None:
    abstentions = np.unique(scan.target[found.unanswerable & (found.rule != RULES.index("absent"))])
    flagged = scan.valid & (scan.flag == 1)
    wrong = int((flagged & (scan.wording | np.isin(scan.target, abstentions))).sum())
    if wrong:
        found.notes.append(
            f"{wrong} records are flagged answerable, but their target is an abstention; the flag "
            "was believed: correct it, or take it out"
        )


def shortened(text: str, length: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3] + "..."
