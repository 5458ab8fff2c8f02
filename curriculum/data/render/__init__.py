"""From records to token ids with a loss weight per position.

template    conversations as text, many in one call
spans       which part of each turn is trained
marks       generation markers of a template, checked or used instead
encode      segments to token ids; prompts
texts       running text and retrieval texts
"""

from curriculum.data.render.encode import (
    Example,
    Segment,
    encode,
    prompt_ids,
    render_chat,
    segments,
    token_ends,
    tokenize,
)
from curriculum.data.render.spans import (
    LossOn,
    Rendered,
    closing,
    render_chats,
    split,
    splits,
    trained_turns,
)
from curriculum.data.render.template import Render, Unrenderable, renders
from curriculum.data.render.texts import (
    closed_length,
    closed_text,
    eos_id,
    render_retrieval,
    render_text,
    render_texts,
    retrieval_texts,
)

__all__ = [
    "Example",
    "LossOn",
    "Render",
    "Rendered",
    "Segment",
    "Unrenderable",
    "closed_length",
    "closed_text",
    "closing",
    "encode",
    "eos_id",
    "prompt_ids",
    "render_chat",
    "render_chats",
    "render_retrieval",
    "render_text",
    "render_texts",
    "renders",
    "retrieval_texts",
    "segments",
    "split",
    "splits",
    "token_ends",
    "tokenize",
    "trained_turns",
]
