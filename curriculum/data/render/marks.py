"""Generation markers of a chat template: `{% generation %}` around what the assistant wrote.

`transformers` says which characters of a render they hold. They are held against the spans that
were found by rendering prefixes, or stand in for them where the template rewrites earlier turns.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from curriculum.data.render.template import Render, Unrenderable

if TYPE_CHECKING:
    from curriculum.data.render.spans import Turn

Span = tuple[int, int]

_REMEDY = (
    "remedy: a model.chat_template whose {% generation %} blocks hold what the assistant wrote, "
    "content and end-of-turn, and nothing else"
)


def merged(marks: Sequence[Span]) -> list[Span]:
    """Marks that touch or overlap as one."""
    joined: list[Span] = []
    for start, stop in sorted(marks):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def check_marks(text: str, marks: Sequence[Span], turns: Sequence["Turn"], ignore: int) -> None:
    """`Unrenderable` unless the marks hold the content of each turn and nothing outside of turns.

    White space need not be marked. Marks that end at or before `ignore` belong to turns that are
    not trained.
    """
    for turn in turns:
        inside = [(start, stop) for start, stop in marks if start < turn.stop and stop > turn.start]
        if not inside:
            reason = "the template's generation markers mark nothing of this assistant turn"
            raise Unrenderable(reason, _REMEDY, turn.index)
        starts = [turn.core_start, *(stop for _, stop in inside)]
        stops = [*(start for start, _ in inside), turn.core_stop]
        gaps = zip(starts, stops, strict=True)
        if any(text[max(a, turn.core_start) : min(b, turn.core_stop)].strip() for a, b in gaps):
            reason = "the template's generation markers do not hold the content of this turn"
            raise Unrenderable(reason, _REMEDY, turn.index)
    for start, stop in marks:
        if stop <= ignore:
            continue
        if not any(turn.start <= start and stop <= turn.stop for turn in turns):
            near = min(turns, key=lambda turn: abs(turn.start - start))
            reason = "the template's generation markers hold text outside of this assistant turn"
            raise Unrenderable(reason, _REMEDY, near.index)


def marked_spans(whole: Render, turns: Sequence[int], end: str | None) -> dict[int, Span]:
    """What is trained of each assistant turn by the marks alone, `end` being what closes a turn.

    The terminator is inside the marks or right behind them. Raises `Unrenderable` where the marks
    cannot be told apart by turn, or no terminator follows.
    """
    marks = merged(whole.marks or [])
    if len(marks) != len(turns):
        reason = (
            f"the template rewrites earlier turns, and its generation markers hold {len(marks)} "
            f"pieces of text for {len(turns)} assistant turns"
        )
        raise Unrenderable(reason, _REMEDY, turns[0])
    if not end:
        reason = "the template rewrites earlier turns, and what it ends a turn with is not known"
        raise Unrenderable(reason, _REMEDY, turns[0])
    terminator = end if end.isspace() else end.rstrip()
    spans = {}
    for turn, (start, stop) in zip(turns, marks, strict=True):
        text = whole.text[start:stop]
        kept = text if terminator.isspace() else text.rstrip()
        if whole.text.startswith(terminator, stop):
            spans[turn] = (start, stop + len(terminator))
        elif kept.endswith(terminator):
            spans[turn] = (start, start + len(kept))
        else:
            reason = f"no end-of-turn {terminator!r} follows what the generation markers hold"
            raise Unrenderable(reason, _REMEDY, turn)
    return spans
