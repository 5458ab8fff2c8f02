"""Whether a passage holds an answer, up to case, punctuation, white space and Unicode form."""

import re
import unicodedata
from collections.abc import Sequence

_NOISE = re.compile(r"[\W_]+")
# Scripts that put no spaces between words, or endings right behind them: Thai to Khmer, kana, Han,
# Hangul. There an answer need not stand between word boundaries.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u9fff\uac00-\ud7af]")


class Answer:
    """An answer, prepared to be looked for in many passages."""

    def __init__(self, text: str) -> None:
        folded = _folded(text)
        self._raw = text.strip()
        self._folded = folded.strip()
        self._words = _NOISE.sub(" ", folded).strip()
        self._longest = max(self._words.split(), key=len, default="")
        self._apart = _UNSPACED.search(folded) is None

    def stands_in(self, passage: str) -> bool:
        """Whether the passage holds the answer word for word.

        An answer without any letter or digit (`+`) has to stand there as it is.
        """
        if not self._words:
            return self._raw in passage
        folded = _folded(passage)
        if self._longest not in folded:  # spares most passages the costly way
            return False
        if self._apart and _stands_apart(self._folded, folded):
            return True
        words = _NOISE.sub(" ", folded)
        if self._apart:
            return f" {self._words} " in f" {words.strip()} "
        return self._words in words


def _stands_apart(wanted: str, text: str) -> bool:
    """Whether a text holds another one between word boundaries."""
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        edges = text[start - 1 : start] + wanted[0], wanted[-1] + text[end : end + 1]
        if not any(len(pair) == 2 and pair.isalnum() for pair in edges):
            return True
        start = text.find(wanted, start + 1)
    return False


def holding(answer: str, passages: Sequence[str]) -> list[bool]:
    """For each passage, whether it holds the answer."""
    wanted = Answer(answer)
    return [wanted.stands_in(passage) for passage in passages]


def any_holds(answer: str, passages: Sequence[str]) -> bool:
    """Whether one of the passages holds the answer."""
    wanted = Answer(answer)
    return any(wanted.stands_in(passage) for passage in passages)


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
