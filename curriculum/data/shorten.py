"""Making an over-long record fit by cutting its source material, and nothing else.

Framing, question and target stay whole, so a cut never hides the question and never teaches a
model to stop early. Passages go from the last; a document loses its end.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from curriculum.data.records import ChatRecord, to_messages
from curriculum.data.render import Example, LossOn, Unrenderable, render_chat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def shortened(
    record: ChatRecord,
    length: int,
    seq_len: int,
    loss_on: LossOn,
    tokenizer: "PreTrainedTokenizerFast",
) -> Example | None:
    """A record of `length` tokens with its source cut to fit `seq_len`; None if that leaves none.

    The cut falls between tokens of the source, as late as possible. The first guess is corrected
    by what is rendered, because a passage that goes also frees its number.
    """
    texts = record.source
    offsets = tokenizer(
        texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )["offset_mapping"]
    ends = [(place, end) for place, spans in enumerate(offsets) for _, end in spans]
    best: Example | None = None
    fits, fails = 0, len(ends)  # numbers of source tokens known to fit and not to fit
    keep = fails - (length - seq_len)
    while fails - fits > 1:
        if not fits < keep < fails:
            keep = (fits + fails) // 2
        example = _render(record, texts, *ends[keep - 1], loss_on, tokenizer)
        excess = len(example.input_ids) - seq_len if example else 0
        if example and excess == 0:
            return example
        if excess > 0:
            fails = keep
        else:  # fits with room to spare, or holds nothing but blanks yet
            best, fits = example or best, keep
        keep -= excess
    return best


def _render(
    record: ChatRecord,
    texts: Sequence[str],
    place: int,
    end: int,
    loss_on: LossOn,
    tokenizer: "PreTrainedTokenizerFast",
) -> Example | None:
    """The record with its source up to character `end` of the text at `place`."""
    source = [text for text in [*texts[:place], texts[place][:end]] if text.strip()]
    if not source:
        return None
    try:
        return render_chat(to_messages(record.with_source(source)), tokenizer, loss_on)
    except Unrenderable:
        return None
