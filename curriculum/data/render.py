"""From messages to token ids with a loss weight per position.

A conversation is rendered by the tokenizer's own chat template. The part of an assistant turn that
is trained is found by rendering, never by searching for token ids: with P the render up to the
turn plus generation prompt, and F the render through the turn, the turn is `F[len(P):]`, provided
that P is a prefix of F and F one of the whole. Templates that rewrite earlier turns break this and
are refused, never guessed at.

What is trained of a turn is its content and the terminator that the template really wrote. White
space after the terminator is framing. If nothing but white space follows the content, that white
space is the terminator. The text is cut at the borders of these spans and each segment is
tokenized on its own, so a token lies wholly inside or outside a span.

`loss_weights[i]` belongs to position i, which predicts token i + 1 of the same example; the last
position predicts nothing and weighs 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import TemplateError

from curriculum.data.records import RetrievalRecord
from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LossOn = Literal["assistant", "last_assistant", "all"]
Conversation = Sequence[dict[str, Any]]

# Encodings hold offsets and strings of every token until their batch is done.
_BATCH_TEXTS = 512

_SPLIT_REMEDY = (
    "remedy: data.on_unstable: split, data.loss_on: last_assistant, or a model.chat_template "
    "that renders earlier turns unchanged"
)


@dataclass(frozen=True)
class Example:
    """Token ids and loss weights of one example, both of its length."""

    input_ids: list[int]
    loss_weights: list[float]


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text that is tokenized on its own."""

    text: str
    trained: bool


class Unrenderable(Exception):
    """A record that the template cannot render with exact spans: reason and remedy."""

    def __init__(self, reason: str, remedy: str, turn: int | None = None) -> None:
        self.reason = reason
        place = "" if turn is None else f"turn {turn}: "
        super().__init__(f"{place}{reason}; {remedy}")


def render_chat(
    messages: Conversation, tokenizer: "PreTrainedTokenizerFast", loss_on: LossOn
) -> Example:
    """One conversation as token ids with loss where `loss_on` says.

    `assistant`: all assistant turns; `last_assistant`: the last one, and only it needs a stable
    template; `all`: every token. Raises `Unrenderable`.
    """
    return encode([chat_segments(messages, tokenizer, loss_on)], tokenizer)[0]


def chat_segments(
    messages: Conversation, tokenizer: "PreTrainedTokenizerFast", loss_on: LossOn
) -> list[Segment]:
    """The rendered conversation cut at the borders of its trained spans."""
    whole = _template(messages, tokenizer)
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    segments: list[Segment] = []
    cursor = 0
    for turn in turns[-1:] if loss_on == "last_assistant" else turns:
        start, stop = _turn_span(messages, turn, whole, tokenizer)
        if start < cursor:
            raise Unrenderable("the template renders turns that overlap", _SPLIT_REMEDY, turn)
        segments.append(Segment(whole[cursor:start], loss_on == "all"))
        segments.append(Segment(whole[start:stop], True))
        cursor = stop
    segments.append(Segment(whole[cursor:], loss_on == "all"))
    return [segment for segment in segments if segment.text]


def _turn_span(
    messages: Conversation, turn: int, whole: str, tokenizer: "PreTrainedTokenizerFast"
) -> tuple[int, int]:
    """Where the trained text of an assistant turn begins and ends in the whole render."""
    before = _template(messages[:turn], tokenizer, add_generation_prompt=True, turn=turn)
    last = turn == len(messages) - 1
    through = whole if last else _template(messages[: turn + 1], tokenizer, turn=turn)
    if not through.startswith(before):
        raise Unrenderable(
            "the render up to this turn, with generation prompt, is no prefix of the render "
            "through it",
            _SPLIT_REMEDY,
            turn,
        )
    if not whole.startswith(through):
        raise Unrenderable("later turns change how this turn is rendered", _SPLIT_REMEDY, turn)
    span = through[len(before) :]
    content = _content_within(messages[turn], span, turn)
    if span.lstrip().startswith(content):
        tail = span.lstrip()[len(content) :]
    else:
        tail = span[span.rindex(content) + len(content) :]
    if not tail:
        raise Unrenderable(
            "the template closes this assistant turn with nothing, so a model could not learn "
            "to stop",
            "remedy: a model.chat_template that ends assistant turns with a token",
            turn,
        )
    trained = span if tail.isspace() else span.rstrip()
    return len(before), len(before) + len(trained)


def _content_within(message: dict[str, Any], span: str, turn: int) -> str:
    """The turn's content as it stands in the span: templates trim it or reformat its reasoning."""
    content = str(message["content"]).strip()
    for form in (content, content.rpartition("</think>")[2].strip()):
        if form in span and (form or message.get("tool_calls")):
            return form
    raise Unrenderable(
        "the template does not render the content of this assistant turn",
        "remedy: another model.chat_template",
        turn,
    )


def _template(
    messages: Conversation,
    tokenizer: "PreTrainedTokenizerFast",
    add_generation_prompt: bool = False,
    turn: int | None = None,
) -> str:
    if not messages:
        raise Unrenderable(
            "the conversation begins with an assistant turn", "remedy: put a user turn first", turn
        )
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )
    except (TemplateError, TypeError) as error:  # what templates raise on roles they do not know
        raise Unrenderable(
            f"the chat template refuses the conversation: {error}",
            "remedy: change the record or model.chat_template",
            turn,
        ) from None


def encode(
    groups: Sequence[Sequence[Segment]], tokenizer: "PreTrainedTokenizerFast"
) -> list[Example]:
    """Token ids and loss weights of several segmented conversations, tokenized in one call."""
    texts = [segment.text for segments in groups for segment in segments]
    pieces = iter(tokenize(texts, tokenizer))
    examples = []
    for segments in groups:
        ids: list[int] = []
        trained: list[float] = []
        for segment in segments:
            piece = next(pieces)
            ids += piece
            trained += [float(segment.trained)] * len(piece)
        examples.append(Example(ids, [*trained[1:], 0.0] if ids else []))
    return examples


def tokenize(
    texts: Sequence[str], tokenizer: "PreTrainedTokenizerFast", special: bool = False
) -> list[list[int]]:
    """Token ids of each text, never cut; `special` adds what the tokenizer adds around a text."""
    ids: list[list[int]] = []
    for start in range(0, len(texts), _BATCH_TEXTS):
        batch = list(texts[start : start + _BATCH_TEXTS])
        ids += tokenizer(
            batch, add_special_tokens=special, return_attention_mask=False, verbose=False
        )["input_ids"]
    return ids


def render_text(text: str, tokenizer: "PreTrainedTokenizerFast") -> Example:
    """Running text: BOS by the tokenizer's own rule, EOS at the end; every token is predicted but
    the first."""
    return render_texts([text], tokenizer)[0]


def render_texts(texts: Sequence[str], tokenizer: "PreTrainedTokenizerFast") -> list[Example]:
    """`render_text` of several texts in one tokenizer call."""
    eos = eos_id(tokenizer)
    examples = []
    for ids in tokenize(texts, tokenizer, special=True):
        closed = ids if ids[-1:] == [eos] else [*ids, eos]
        examples.append(Example(closed, [1.0] * (len(closed) - 1) + [0.0]))
    return examples


def prompt_ids(messages: Conversation, tokenizer: "PreTrainedTokenizerFast") -> list[int]:
    """A conversation that waits for an answer, with generation prompt; the same tokens that come
    before the answer in training, where the prompt is one segment as well."""
    return tokenize([_template(messages, tokenizer, add_generation_prompt=True)], tokenizer)[0]


def render_retrieval(
    record: RetrievalRecord, tokenizer: "PreTrainedTokenizerFast", seq_len: int, documents: int
) -> list[list[int]]:
    """Token ids of the query, its first positive and its first `documents - 1` negatives.

    Each text is cut to `seq_len - 1` tokens before EOS is put behind it, so that the pooling
    token survives the cut.
    """
    texts = retrieval_texts(record, documents)
    return [closed_text(ids, tokenizer, seq_len) for ids in tokenize(texts, tokenizer, True)]


def retrieval_texts(record: RetrievalRecord, documents: int) -> list[str]:
    """Query, first positive, and as many negatives as the group has room for."""
    return [record.query, record.answers[0], *(record.negatives or [])[: documents - 1]]


def closed_text(
    ids: Sequence[int], tokenizer: "PreTrainedTokenizerFast", seq_len: int
) -> list[int]:
    """Ids cut to make room for EOS, with exactly one EOS at the end."""
    return [*_body(ids, tokenizer)[: seq_len - 1], eos_id(tokenizer)]


def is_cut(ids: Sequence[int], tokenizer: "PreTrainedTokenizerFast", seq_len: int) -> bool:
    """True if `closed_text` leaves tokens of the text out."""
    return len(_body(ids, tokenizer)) > seq_len - 1


def _body(ids: Sequence[int], tokenizer: "PreTrainedTokenizerFast") -> list[int]:
    return list(ids[:-1] if ids and ids[-1] == eos_id(tokenizer) else ids)


def eos_id(tokenizer: "PreTrainedTokenizerFast") -> int:
    """The id of EOS, or `UserError`: texts and retrieval documents end with it."""
    if tokenizer.eos_token_id is None:
        raise UserError(
            "the tokenizer has no eos_token, which text and retrieval phases put behind every "
            "text; set eos_token in its tokenizer_config.json"
        )
    return int(tokenizer.eos_token_id)
