"""The shape of a text that should hold a question: how long, how it ends, what marks the question.

Records whose question was cut away are found by what they lack beside the others, so these are
cheap features that say nothing on their own.
"""

import re
from dataclasses import dataclass

from curriculum.data.audit.facts import Flag

_TAIL = 300  # characters in which a question at the end would stand
_LABEL_TAIL = 1000
_OPENING_WORDS = 2

_QUESTION_LABEL = re.compile(r"\b(?:question|query|q) ?\d* ?[*_]{0,2} ?[:>\])]")
_LINE_LABEL = re.compile(r"(?:^|\n)[\s#*<\[]*([^\W\d]\w*(?: \w+)?)[*_]{0,2} ?[:>\]]")
_MARK = re.compile("[?？؟]")
_CLOSED = re.compile(r"(?<!\.\.)[.!?。！？؟][\"'”’»)\]*]*\s*$")


@dataclass(slots=True)
class Shape:
    """`texts`: last line, its opening, last label. `lengths`: characters, bytes, words."""

    flags: int
    texts: tuple[str, str, str]
    lengths: tuple[int, int, int]


def shape(text: str, normal: str) -> Shape:
    """The shape of a text, given with its normalised form."""
    flags = Flag.ASKS
    if "question" in normal or "query" in normal or "q:" in normal:
        flags |= Flag.LABELLED if _QUESTION_LABEL.search(normal) else 0
    end = text[-_LABEL_TAIL:]
    if _MARK.search(end[-_TAIL:]):
        flags |= Flag.MARKED
    if _CLOSED.search(end[-_TAIL:]):
        flags |= Flag.CLOSED
    body = text.rstrip()
    line = body[body.rfind("\n") + 1 :].strip().casefold()
    labels = _LINE_LABEL.findall(end)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    opening = " ".join(line.split(None, _OPENING_WORDS)[:_OPENING_WORDS])
    label = labels[-1].casefold() if labels else ""
    return Shape(flags, (line, opening, label), (len(text), size, normal.count(" ") + 1))
