"""Making over-long records fit by cutting their source material, and nothing else.

Framing, question and target stay whole, so a cut never hides the question and never teaches a
model to stop early. Passages go from the last; a document loses its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from curriculum.data.records import Chat, ChatRecord, to_chat
from curriculum.data.render import (
    Example,
    LossOn,
    Unrenderable,
    encode,
    render_chats,
    segments,
    token_ends,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass
class _Search:
    """How many tokens of its source a record can keep: `fits` are known to fit, `fails` not to.

    `ends`: for each token of the source, the text it belongs to and the character it ends at.
    `keep`: the next number to try.
    """

    record: ChatRecord
    ends: list[tuple[int, int]]
    keep: int
    fails: int
    fits: int = 0
    best: Example | None = field(default=None)

    @property
    def open(self) -> bool:
        return self.fails - self.fits > 1

    def next_record(self) -> ChatRecord | None:
        """The record with as much source as is to be tried, None if that is nothing but blanks."""
        if not self.fits < self.keep < self.fails:
            self.keep = (self.fits + self.fails) // 2
        place, end = self.ends[self.keep - 1]
        texts = self.record.source
        source = [text for text in [*texts[:place], texts[place][:end]] if text.strip()]
        return self.record.with_source(source) if source else None

    def judge(self, example: Example | None, seq_len: int) -> None:
        """Narrow the search by what the last try gave: None if it could not be rendered."""
        excess = 0 if example is None else len(example.input_ids) - seq_len
        if excess > 0:
            self.fails = self.keep
        else:
            self.best, self.fits = example or self.best, self.keep
            if example is not None and excess == 0:
                self.fails = self.fits  # a longer source cannot fit
        self.keep -= excess


def shortened(
    records: Sequence[tuple[ChatRecord, int]],
    seq_len: int,
    loss_on: LossOn,
    tokenizer: "PreTrainedTokenizerFast",
) -> list[Example | None]:
    """Records and their lengths in tokens, each with its source cut to fit `seq_len`; None where
    that leaves no source.

    The cut falls between tokens of the source, as late as possible. The first guess is corrected
    by what is rendered, because a passage that goes also frees its number. All records take their
    next step together: rendering many at once is cheaper.
    """
    texts = [text for record, _ in records for text in record.source]
    found = iter(token_ends(texts, tokenizer))
    searches = []
    for record, length in records:
        ends = [(place, end) for place, _ in enumerate(record.source) for end in next(found)]
        searches.append(_Search(record, ends, len(ends) - (length - seq_len), len(ends)))
    while active := [search for search in searches if search.open]:
        tries = [search.next_record() for search in active]
        examples = iter(_examples([to_chat(one) for one in tries if one], loss_on, tokenizer))
        for search, one in zip(active, tries, strict=True):
            search.judge(next(examples) if one else None, seq_len)
    return [search.best for search in searches]


def _examples(
    chats: Sequence[Chat], loss_on: LossOn, tokenizer: "PreTrainedTokenizerFast"
) -> list[Example | None]:
    rendered = render_chats(chats, tokenizer, loss_on)
    good = [segments(one, loss_on) for one in rendered if not isinstance(one, Unrenderable)]
    encoded = iter(encode(good, tokenizer))
    return [None if isinstance(one, Unrenderable) else next(encoded) for one in rendered]
