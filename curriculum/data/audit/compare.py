"""Texts compared up to case and white space, at the speed of a whole set."""

from collections.abc import Iterable, Iterator, Sequence

from curriculum.data.records import normalised

_CHARACTERS = 80  # of a quoted text
_NO_ANSWER = frozenset(["yes", "no", "true", "false", "none", "null", "n/a", "unknown"])
_SHORTEST_ANSWER = 2


def repeats(texts: Sequence[str]) -> bool:
    """Whether two of the texts are equal when normalised. Most differ in their first words."""
    starts: dict[str, list[str]] = {}
    for text in texts:
        others = starts.setdefault(" ".join(text.split(None, 3)[:3]).casefold(), [])
        if others and normalised(text) in map(normalised, others):
            return True
        others.append(text)
    return False


def stands_in(answers: Iterable[str], passages: Sequence[str]) -> Iterator[bool]:
    """For each answer, whether a passage holds it as whole words, up to case and white space."""
    texts = [normalised(passage) for passage in passages]
    for answer in answers:
        wanted = normalised(answer).rstrip(".!")
        plain = len(wanted) < _SHORTEST_ANSWER or wanted in _NO_ANSWER
        yield not plain and any(_holds(text, wanted) for text in texts)


def _holds(text: str, words: str) -> bool:
    start = text.find(words)
    while start >= 0:
        end = start + len(words)
        runs_in = text[max(0, start - 1) : start].isalnum() and words[0].isalnum()
        runs_on = text[end : end + 1].isalnum() and words[-1].isalnum()
        if not (runs_in or runs_on):
            return True
        start = text.find(words, start + 1)
    return False


def quoted(text: str) -> str:
    """A text in quotes on one line, shortened."""
    line = " ".join(text.split())
    short = line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 3] + "..."
    return f'"{short}"'
