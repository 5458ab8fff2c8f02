"""Recognises the members of a bank in text, with the slots as wildcards."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from curriculum.data.abstention.bank import BANK
from curriculum.data.abstention.slots import SLOT

_NOISE = re.compile(r"[\W_]+")
_WILDCARD = r"\w+(?: \w+)*"


def normalise(text: str) -> str:
    """Lower case; every run of punctuation and white space becomes one space; ends stripped."""
    return _NOISE.sub(" ", text.lower()).strip()


@dataclass(frozen=True)
class _Member:
    place: int
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class AbstentionMatcher:
    """Recognises the members of one bank: `matcher(text)`; built by `matcher_for`.

    Members are looked up by the word that they begin or else end with, so that a text which is
    none of them costs next to nothing, however large the bank is.
    """

    bank: tuple[str, ...]
    by_first: dict[str, list[_Member]]
    by_last: dict[str, list[_Member]]
    others: list[_Member]

    def __call__(self, text: str) -> bool:
        """Whether the whole normalised text is one paraphrase, slots standing for any words."""
        return self.which(text) is not None

    def which(self, text: str) -> str | None:
        """The paraphrase that the text is, the first of the bank where several fit, or None."""
        said = normalise(text)
        members = [
            *self.by_first.get(said.partition(" ")[0], ()),
            *self.by_last.get(said.rpartition(" ")[2], ()),
            *self.others,
        ]
        fitting = [member.place for member in members if member.pattern.fullmatch(said)]
        return self.bank[min(fitting)] if fitting else None


@lru_cache(maxsize=16)
def matcher_for(bank: tuple[str, ...] = BANK) -> AbstentionMatcher:
    """The matcher of a bank. A slot matches one or more words. An empty bank matches nothing."""
    matcher = AbstentionMatcher(bank, {}, {}, [])
    for place, paraphrase in enumerate(bank):
        literals = SLOT.sub("\0", paraphrase).split("\0")
        member = _Member(place, re.compile(_pattern(literals)))
        first, last = literals[0], literals[-1]
        if len(literals) == 1 or _whole_word(first, -1):
            matcher.by_first.setdefault(normalise(first).partition(" ")[0], []).append(member)
        elif _whole_word(last, 0):
            matcher.by_last.setdefault(normalise(last).rpartition(" ")[2], []).append(member)
        else:
            matcher.others.append(member)
    return matcher


def _pattern(literals: Sequence[str]) -> str:
    """A pattern of normalised text. Words that touch a slot touch what it takes, too."""
    pattern, last = "", len(literals) - 1
    for place, literal in enumerate(literals):
        words = re.escape(normalise(literal))
        if not words:
            pattern += " " if literal and 0 < place < last else ""
        else:
            pattern += " " if place and _parts(literal, 0) else ""
            pattern += words
            pattern += " " if place < last and _parts(literal, -1) else ""
        pattern += _WILDCARD if place < last else ""
    return pattern


def _parts(literal: str, end: int) -> bool:
    """Whether normalising leaves a space between a slot and this end of the literal."""
    return _NOISE.match(literal[end]) is not None


def _whole_word(literal: str, end: int) -> bool:
    """Whether the word at this end of the literal stands apart from the slot next to it."""
    return bool(normalise(literal)) and (_parts(literal, end) or " " in normalise(literal))


@lru_cache(maxsize=1)
def known_banks() -> tuple[str, ...]:
    """The general bank and the demo corpus's."""
    # Imported on use: the demo corpus is built on this package.
    from curriculum.data.demo import abstentions

    return (*BANK, *abstentions.BANK)


def is_abstention(text: str, bank: Sequence[str] | None = None) -> bool:
    """Whether `text` is an abstention: a paraphrase of the bank, or of a known one without it."""
    return matcher_for(known_banks() if bank is None else tuple(bank))(text)
