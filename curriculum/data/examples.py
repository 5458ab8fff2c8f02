"""Policies around rendering: which records become examples, and what happens to the others.

`build` turns some rows of a source into examples that each fit a window. Records that break a rule,
that the template cannot render, that are too long or that train nothing are refused, cut or
dropped as the phase's `data` section says; each is counted under its reason, and what is an error
is collected so that one message names up to 20 of them. Packing plays no part here: the examples
are the same packed and unpacked.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from curriculum.config import Phase
from curriculum.data.counts import (
    DOCUMENT_UNUSED,
    NO_SOURCE,
    NO_TOKENS,
    NO_TRAINED_TOKENS,
    OVER_LONG,
    SOURCE_SHORTENED,
    SPLIT_INTO_PIECES,
    SPLIT_INTO_TURNS,
    TEXT_SHORTENED,
    TOO_LONG_WITHOUT_SOURCE,
    Report,
)
from curriculum.data.records import (
    BadRecord,
    Chat,
    ChatRecord,
    RetrievalRecord,
    Text,
    is_chat,
    normalised,
    parse,
    to_chat,
)
from curriculum.data.render import (
    Example,
    Rendered,
    Segment,
    Unrenderable,
    closed_length,
    closed_text,
    encode,
    render_chats,
    render_texts,
    retrieval_texts,
    segments,
    split,
    splits,
    tokenize,
    trained_turns,
)
from curriculum.data.shorten import shortened
from curriculum.data.sources import Address, Source
from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Texts of a batch are held several times over while it is rendered.
_BATCH_RECORDS = 256


@dataclass(frozen=True)
class Item:
    """What a window is made of: one example, or a retrieval group of several texts.

    `input_ids` int32 [T], `loss_weights` float32 [T], `seq_lens` the lengths of its texts,
    `document_ids` one a text for retrieval and none otherwise.
    """

    record_id: int
    input_ids: np.ndarray
    loss_weights: np.ndarray
    seq_lens: list[int]
    document_ids: list[int]


@dataclass(frozen=True)
class _Row:
    record_id: int
    address: Address
    record: ChatRecord | RetrievalRecord | Text


def build(
    source: Source,
    rows: Iterable[int],
    name: str,
    phase: Phase,
    tokenizer: "PreTrainedTokenizerFast",
) -> tuple[list[Item], Report]:
    """The examples of some rows of a source, in the order of the rows, and what was counted.

    Raises `RunError` for records that the phase's policies make an error.
    """
    report = Report()
    makers = {"retrieval": _groups, "text": _texts}
    make = _chats if is_chat(phase.task) else makers.get(phase.task)
    if make is None:
        raise UserError(f"plan.phases.{name}.task={phase.task}: has no windows to be trained on")
    items: list[Item] = []
    rows = list(rows)
    for start in range(0, len(rows), _BATCH_RECORDS):
        part = rows[start : start + _BATCH_RECORDS]
        items += make(list(_parsed(source, part, phase, report)), phase, tokenizer, report)
    report.raise_errors(f"phase {name}")
    return items, report


def _parsed(source: Source, rows: Iterable[int], phase: Phase, report: Report) -> Iterator[_Row]:
    for row in rows:
        address, line = source[row]
        try:
            yield _Row(row, address, parse(phase.task, line, address, strict=phase.data.strict))
        except BadRecord as error:
            _refuse(address, str(error), error.reason, phase, report)


def _refuse(address: Address, message: str, reason: str, phase: Phase, report: Report) -> None:
    if phase.data.on_bad_record == "skip":
        report.drop(reason, address)
    else:
        report.errors.append((address, message))


def _chats(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> Iterator[Item]:
    owners, groups = _segmented(rows, phase, tokenizer, report)
    examples: list[Example | None] = list(encode(groups, tokenizer))
    over_long = []
    for place, (row, example) in enumerate(zip(owners, examples, strict=True)):
        length = len(example.input_ids)
        if length <= phase.seq_len:
            continue
        examples[place] = None
        if not _left_out(row, length, phase, report):
            if row.record.source:
                over_long.append((place, length))
            else:
                report.drop(NO_SOURCE, row.address)
    records = [(owners[place].record, length) for place, length in over_long]
    shorter = shortened(records, phase.seq_len, phase.data.loss_on, tokenizer) if records else []
    for (place, _), example in zip(over_long, shorter, strict=True):
        examples[place] = example
        if example is None:
            report.drop(TOO_LONG_WITHOUT_SOURCE, owners[place].address)
        else:
            report.cut(SOURCE_SHORTENED, owners[place].address)
    for row, example in zip(owners, examples, strict=True):
        if example is not None and not example.loss_weights.any():
            report.drop(NO_TRAINED_TOKENS, row.address)
        elif example is not None:
            yield _item(row.record_id, example)


def _segmented(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> tuple[list[_Row], list[list[Segment]]]:
    """Segmented conversations with the row that each comes of: one a row, or one a turn of it
    where the template needs a split."""
    loss_on, kept, chats = phase.data.loss_on, [], []
    for row in rows:
        chat = to_chat(row.record)
        if loss_on == "all" or trained_turns(chat, loss_on):
            kept.append(row)
            chats.append(chat)
        else:
            message = f"{row.address}: no assistant turn, so nothing would be trained"
            _refuse(row.address, message, NO_TRAINED_TOKENS, phase, report)
    found = render_chats(chats, tokenizer, loss_on)
    parts = {
        place: split(chats[place])
        for place, one in enumerate(found)
        if isinstance(one, Unrenderable)
        and splits(one, chats[place], loss_on, phase.data.on_unstable)
    }
    single: list[Chat] = [chat for part in parts.values() for chat in part]
    variants = iter(render_chats(single, tokenizer, "last_assistant"))
    owners: list[_Row] = []
    groups: list[list[Segment]] = []
    for place, row in enumerate(kept):
        several = [next(variants) for _ in parts.get(place, ())] or [found[place]]
        errors = [one for one in several if isinstance(one, Unrenderable)]
        if errors:
            reason = f"unrenderable: {errors[0].reason}"
            _refuse(row.address, f"{row.address}: {errors[0]}", reason, phase, report)
            continue
        if place in parts:
            report.cut(SPLIT_INTO_TURNS, row.address)
        owners += [row] * len(several)
        groups += [segments(one, loss_on) for one in several if isinstance(one, Rendered)]
    return owners, groups


def _left_out(row: _Row, length: int, phase: Phase, report: Report) -> bool:
    """True if the policy leaves an over-long record out rather than cut it."""
    if phase.data.on_over_long == "error":
        message = (
            f"{row.address}: {length} tokens do not fit seq_len={phase.seq_len}; remedy: a larger "
            "seq_len, or data.on_over_long: drop or truncate_source"
        )
        report.errors.append((row.address, message))
    elif phase.data.on_over_long == "drop":
        report.drop(OVER_LONG, row.address)
    return phase.data.on_over_long != "truncate_source"


def _texts(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> Iterator[Item]:
    """Each text, or its consecutive pieces of at most `seq_len` tokens.

    The first token of a piece is not predicted across the cut. A last piece of one token would
    train nothing, so it takes over a token from the piece before it.
    """
    examples = render_texts([row.record.text for row in rows], tokenizer)
    for row, example in zip(rows, examples, strict=True):
        size = len(example.input_ids)
        cuts = list(range(0, size, phase.seq_len))
        if len(cuts) > 1:
            if _left_out(row, size, phase, report):
                continue
            report.cut(SPLIT_INTO_PIECES, row.address)
            if size - cuts[-1] == 1 and phase.seq_len > 2:
                cuts[-1] -= 1
        for start, stop in zip(cuts, [*cuts[1:], size], strict=True):
            if stop - start < 2:
                report.drop(NO_TRAINED_TOKENS, row.address)
                continue
            weights = np.ones(stop - start, np.float32)
            weights[-1] = 0.0
            yield _item(row.record_id, Example(example.input_ids[start:stop], weights))


def _groups(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> Iterator[Item]:
    """Query, positive and negatives of each record, every text closed by EOS."""
    assert phase.retrieval is not None
    texts = [retrieval_texts(row.record, phase.retrieval.documents) for row in rows]
    flat = iter(tokenize([text for group in texts for text in group], tokenizer, special=True))
    for row, group in zip(rows, texts, strict=True):
        raw = [next(flat) for _ in group]
        ids = [closed_text(one, tokenizer, phase.seq_len) for one in raw]
        if any(len(one) < 2 for one in ids):
            report.drop(NO_TOKENS, row.address)
            continue
        sizes = [closed_length(one, tokenizer) for one in raw]
        if max(sizes) > phase.seq_len and _left_out(row, max(sizes), phase, report):
            continue
        unused = len(row.record.answers) + len(row.record.negatives or []) - (len(group) - 1)
        report.cut(DOCUMENT_UNUSED, row.address, unused)
        report.cut(TEXT_SHORTENED, row.address, sum(size > phase.seq_len for size in sizes))
        joined = np.array([token for one in ids for token in one], dtype=np.int32)
        yield Item(
            record_id=row.record_id,
            input_ids=joined,
            loss_weights=np.zeros(len(joined), dtype=np.float32),
            seq_lens=[len(one) for one in ids],
            document_ids=[document_id(text) for text in group],
        )


def document_id(text: str) -> int:
    """A positive 63-bit hash of the normalised text: equal texts have equal ids everywhere."""
    value = hashlib.blake2b(normalised(text).encode(), digest_size=8).digest()
    return int.from_bytes(value, "little") >> 1 or 1


def _item(record_id: int, example: Example) -> Item:
    return Item(
        record_id=record_id,
        input_ids=example.input_ids,
        loss_weights=example.loss_weights,
        seq_lens=[len(example.input_ids)],
        document_ids=[],
    )
