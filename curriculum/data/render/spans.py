"""Which part of a rendered conversation is trained.

The part of an assistant turn that is trained is found by rendering, never by searching for token
ids: with P the render up to the turn plus generation prompt, and F the render through the turn, the
turn is `F[len(P):]`, provided that P is a prefix of F and F one of the whole. Templates that
rewrite earlier turns break this and are refused, never guessed at.

Where a template says itself what the assistant wrote (`{% generation %}` markers), the markers must
agree with that on the content; where it rewrites earlier turns, they decide instead.

What is trained of a turn is its content and the terminator that the template really wrote, with or
without markers. White space after the terminator is framing. If nothing but white space follows the
content, that white space is the terminator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from curriculum.data.records import Chat
from curriculum.data.render.marks import check_marks, marked_spans, merged
from curriculum.data.render.template import Render, Unrenderable, renders

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LossOn = Literal["assistant", "last_assistant", "all"]

_SPLIT_REMEDY = (
    "remedy: data.on_unstable: split, data.loss_on: last_assistant, or a model.chat_template "
    "that renders earlier turns unchanged"
)
_PROBE = "0123456789"  # occurs in no terminator


@dataclass(frozen=True)
class Rendered:
    """A conversation as text; `spans`: what is trained of its turns, as (start, stop) in order."""

    text: str
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Turn:
    """One assistant turn in the whole render: it fills `start:stop`, its content and calls fill
    `core_start:core_stop`, and `start:trained_stop` is trained."""

    index: int
    start: int
    stop: int
    core_start: int
    core_stop: int
    trained_stop: int


def trained_turns(chat: Chat, loss_on: LossOn) -> list[int]:
    """Indices of the assistant turns that carry loss."""
    turns = [
        index
        for index, message in enumerate(chat.messages)
        if message["role"] == "assistant" and index >= chat.first_trained
    ]
    return turns[-1:] if loss_on == "last_assistant" else turns


def render_chats(
    chats: Sequence[Chat], tokenizer: "PreTrainedTokenizerFast", loss_on: LossOn
) -> list[Rendered | Unrenderable]:
    """Each conversation with its spans, or why it has none.

    `assistant`: all assistant turns that may be trained; `last_assistant`: the last one, and only
    it needs a stable template; `all`: as `assistant`, for the borders between segments.
    """
    wholes = renders(chats, tokenizer)
    turns = [
        [] if isinstance(whole, Unrenderable) else trained_turns(chat, loss_on)
        for chat, whole in zip(chats, wholes, strict=True)
    ]
    places = [(place, turn) for place, found in enumerate(turns) for turn in found]
    befores = renders([_head(chats[p], t) for p, t in places], tokenizer, prompt=True)
    inner = [(p, t) for p, t in places if t + 1 < len(chats[p].messages)]
    inner_renders = renders([_head(chats[p], t + 1) for p, t in inner], tokenizer)
    throughs = dict(zip(inner, inner_renders, strict=True))
    prompts = dict(zip(places, befores, strict=True))
    end = closing(tokenizer) if places else None
    results: list[Rendered | Unrenderable] = []
    for place, (chat, whole) in enumerate(zip(chats, wholes, strict=True)):
        if isinstance(whole, Unrenderable):
            results.append(whole)
            continue
        pairs = [
            (turn, prompts[place, turn], throughs.get((place, turn), whole))
            for turn in turns[place]
        ]
        try:
            results.append(Rendered(whole.text, _spans(chat, whole, pairs, end)))
        except Unrenderable as error:
            results.append(error)
    return results


def splits(error: Unrenderable, chat: Chat, loss_on: LossOn, on_unstable: str) -> bool:
    """True if the policy allows to train each turn of this conversation as one of its own."""
    turns = trained_turns(chat, loss_on)
    # A single turn that ends the conversation would be split into what could not be rendered.
    parts = len(turns) > 1 or turns[-1:] != [len(chat.messages) - 1]
    return error.unstable and parts and on_unstable == "split" and loss_on == "assistant"


def split(chat: Chat) -> list[Chat]:
    """One conversation for each trained turn, which ends with it. Only that turn is to be trained:
    the ones before it are shown as the template shows them when the turn is asked for."""
    return [_head(chat, turn + 1) for turn in trained_turns(chat, "assistant")]


def closing(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """What the template writes behind the content of a last assistant turn, None if unknown."""
    exchange = [{"role": role, "content": _PROBE} for role in ("user", "assistant")]
    (render,) = renders([Chat(exchange)], tokenizer)
    if isinstance(render, Unrenderable) or _PROBE not in render.text:
        return None
    return render.text.rpartition(_PROBE)[2]


def _head(chat: Chat, count: int) -> Chat:
    return Chat(chat.messages[:count], chat.tools, chat.first_trained)


def _spans(
    chat: Chat,
    whole: Render,
    pairs: Sequence[tuple[int, Render | Unrenderable, Render | Unrenderable]],
    end: str | None,
) -> list[tuple[int, int]]:
    """Trained spans from (turn, render up to it, render through it); `end`: see `closing`."""
    try:
        turns = [_turn(chat, *pair, whole.text, end) for pair in pairs]
        for first, second in pairwise(turns):
            if second.start < first.trained_stop:
                reason = "the template renders turns that overlap"
                raise Unrenderable(reason, _SPLIT_REMEDY, second.index, unstable=True)
    except Unrenderable as error:
        if not error.unstable or not whole.marks:
            raise
        every = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        trained = [pair[0] for pair in pairs]
        spans = marked_spans(whole, every, end)
        for turn in trained:
            start, stop = spans[turn]
            locate(chat.messages[turn], whole.text[start:stop], None, turn)
        return [spans[turn] for turn in trained]
    if whole.marks is not None and turns:
        before = any(message["role"] == "assistant" for message in chat.messages[: turns[0].index])
        check_marks(whole.text, merged(whole.marks), turns, ignore=turns[0].start if before else 0)
    return [(turn.start, turn.trained_stop) for turn in turns]


def _turn(
    chat: Chat,
    index: int,
    before: Render | Unrenderable,
    through: Render | Unrenderable,
    whole: str,
    end: str | None,
) -> Turn:
    for render in (before, through):
        if isinstance(render, Unrenderable):
            raise Unrenderable(render.reason, render.remedy, index)
    prompt, closed = before.text, through.text
    if not closed.startswith(prompt):
        raise Unrenderable(
            "the render up to this turn, with generation prompt, is no prefix of the render "
            "through it",
            _SPLIT_REMEDY,
            index,
            unstable=True,
        )
    if not whole.startswith(closed):
        reason = "later turns change how this turn is rendered"
        raise Unrenderable(reason, _SPLIT_REMEDY, index, unstable=True)
    start, span = len(prompt), closed[len(prompt) :]
    core_start, core_stop = locate(chat.messages[index], span, end, index)
    tail = span[core_stop:]
    if not tail:
        raise Unrenderable(
            "the template closes this assistant turn with nothing, so a model could not learn "
            "to stop",
            "remedy: a model.chat_template that ends assistant turns with a token",
            index,
        )
    trained = span if tail.isspace() else span.rstrip()
    return Turn(
        index,
        start,
        len(closed),
        start + core_start,
        start + max(core_start, len(span[:core_stop].rstrip())),
        start + len(trained),
    )


def locate(message: dict[str, Any], span: str, end: str | None, turn: int) -> tuple[int, int]:
    """Where content and calls of a turn begin and end in its span, which may close with `end`.

    Templates trim a content or reformat the reasoning in it.
    """
    stop = len(span) - len(end) if end and span.endswith(end) else None
    body = span[:stop]
    calls = message.get("tool_calls") or []
    content = str(message.get("content") or "").strip()
    for form in (content, content.rpartition("</think>")[2].strip()):
        if form in body and (form or calls):
            break
    else:
        raise Unrenderable(
            "the template does not render the content of this assistant turn",
            "remedy: another model.chat_template",
            turn,
        )
    for call in calls:
        if call.get("function", call)["name"] not in body:
            raise Unrenderable(
                "the template does not render the tool calls of this assistant turn",
                "remedy: a model.chat_template that knows tools",
                turn,
            )
    blank = len(body) - len(body.lstrip())
    start = blank if body.startswith(form, blank) else body.rindex(form)
    if stop is None:
        stop = start + len(form)
    return start, stop
