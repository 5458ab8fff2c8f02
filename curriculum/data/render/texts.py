"""Texts that are no conversation: running text, and the texts of a retrieval group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from curriculum.data.records import RetrievalRecord
from curriculum.data.render.encode import Example, tokenize
from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
        weights = np.ones(len(closed), np.float32)
        weights[-1] = 0.0
        examples.append(Example(np.array(closed, np.int32), weights))
    return examples


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


def closed_length(ids: Sequence[int], tokenizer: "PreTrainedTokenizerFast") -> int:
    """How many tokens the uncut text has, EOS included."""
    return len(_body(ids, tokenizer)) + 1


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
