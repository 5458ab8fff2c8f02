"""From text to token ids with a loss weight per position.

A conversation is cut at the borders of its trained spans and each segment is tokenized on its own,
so a token lies wholly inside or outside a span.

`loss_weights[i]` belongs to position i, which predicts token i + 1 of the same example; the last
position predicts nothing and weighs 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from curriculum.data.records import Chat
from curriculum.data.render.spans import LossOn, Rendered, render_chats, split, splits
from curriculum.data.render.template import Unrenderable

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

# Encodings hold strings of every token until their batch is done.
_BATCH_TEXTS = 512


@dataclass(frozen=True, eq=False)
class Example:
    """Token ids (int32) and loss weights (float32) of one example, both of its length."""

    input_ids: np.ndarray
    loss_weights: np.ndarray


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text that is tokenized on its own."""

    text: str
    trained: bool


def segments(rendered: Rendered, loss_on: LossOn) -> list[Segment]:
    """The rendered conversation cut at the borders of its trained spans."""
    pieces: list[Segment] = []
    cursor = 0
    for start, stop in rendered.spans:
        pieces.append(Segment(rendered.text[cursor:start], loss_on == "all"))
        pieces.append(Segment(rendered.text[start:stop], True))
        cursor = stop
    pieces.append(Segment(rendered.text[cursor:], loss_on == "all"))
    return [piece for piece in pieces if piece.text]


def render_chat(chat: Chat, tokenizer: "PreTrainedTokenizerFast", loss_on: LossOn) -> Example:
    """One conversation as token ids with loss where `loss_on` says. Raises `Unrenderable`."""
    (rendered,) = render_chats([chat], tokenizer, loss_on)
    if isinstance(rendered, Unrenderable):
        raise rendered
    return encode([segments(rendered, loss_on)], tokenizer)[0]


def prompt_ids(
    chat: Chat,
    tokenizer: "PreTrainedTokenizerFast",
    loss_on: LossOn = "assistant",
    on_unstable: str = "refuse",
) -> list[int]:
    """The token ids that training sees before the last assistant turn of a conversation.

    They are cut and tokenized as in training, from the conversation with its answer. Raises
    `Unrenderable`, also where no turn is trained.
    """
    (rendered,) = render_chats([chat], tokenizer, loss_on)
    if isinstance(rendered, Unrenderable) and splits(rendered, chat, loss_on, on_unstable):
        (rendered,) = render_chats(split(chat)[-1:], tokenizer, "last_assistant")
    if isinstance(rendered, Unrenderable):
        raise rendered
    if not rendered.spans:
        raise Unrenderable("no assistant turn is trained", "remedy: end with an assistant turn")
    *earlier, (start, _) = rendered.spans
    before = Rendered(rendered.text[:start], earlier)
    texts = [segment.text for segment in segments(before, loss_on)]
    return list(chain.from_iterable(tokenize(texts, tokenizer)))


def encode(
    groups: Sequence[Sequence[Segment]], tokenizer: "PreTrainedTokenizerFast"
) -> list[Example]:
    """Token ids and loss weights of several segmented conversations, tokenized in one call."""
    flat = [segment for group in groups for segment in group]
    pieces = tokenize([segment.text for segment in flat], tokenizer)
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    trained = np.array([segment.trained for segment in flat], dtype=np.float32)
    ids = np.fromiter(chain.from_iterable(pieces), np.int32, count=int(sizes.sum()))
    weights = np.zeros(len(ids), np.float32)
    weights[:-1] = np.repeat(trained, sizes)[1:]
    ends = np.concatenate([[0], np.cumsum(sizes)])[np.cumsum([0, *map(len, groups)])]
    weights[ends[1:][np.diff(ends) > 0] - 1] = 0.0
    return [
        Example(ids[start:stop], weights[start:stop])
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]


def tokenize(
    texts: Sequence[str], tokenizer: "PreTrainedTokenizerFast", special: bool = False
) -> list[list[int]]:
    """Token ids of each text, never cut; `special` adds what the tokenizer adds around a text."""
    backend = _unlimited(tokenizer)
    return [
        encoding.ids
        for batch in _batches(texts)
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=special)
    ]


def token_ends(texts: Sequence[str], tokenizer: "PreTrainedTokenizerFast") -> list[list[int]]:
    """For each text, the character at which each of its tokens ends."""
    backend = _unlimited(tokenizer)
    return [
        [stop for _, stop in encoding.offsets]
        for batch in _batches(texts)
        for encoding in backend.encode_batch(batch, add_special_tokens=False)
    ]


def _unlimited(tokenizer: "PreTrainedTokenizerFast") -> "Tokenizer":
    """The tokenizer as `transformers` would call it, without limits that were saved with it."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(texts), _BATCH_TEXTS):
        yield list(texts[start : start + _BATCH_TEXTS])
