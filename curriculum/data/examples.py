"""Policies around rendering: which records become examples, and what happens to the others.

`build` turns some rows of a source into examples that each fit a window. Records that break a rule,
that the template cannot render, that are too long or that train nothing are refused, cut or
dropped as the phase's `data` section says; each is counted under its reason, and what is an error
is collected so that one message names up to 20 of them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from curriculum.config import Phase
from curriculum.data.records import (
    BadRecord,
    ChatRecord,
    RetrievalRecord,
    Text,
    is_chat,
    normalised,
    parse,
    to_messages,
)
from curriculum.data.render import (
    Example,
    LossOn,
    Segment,
    Unrenderable,
    chat_segments,
    closed_text,
    encode,
    is_cut,
    render_texts,
    retrieval_texts,
    tokenize,
)
from curriculum.data.shorten import shortened
from curriculum.data.sources import Address, Source
from curriculum.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_LISTED = 20
_ADDRESSES = 3


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


@dataclass
class Report:
    """What was left out (`drops`) and what was changed (`cuts`), counted by reason.

    `dropped_at` holds the first addresses of each reason, for messages and audit.
    """

    drops: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    dropped_at: dict[str, list[str]] = field(default_factory=dict)
    errors: list[tuple[Address, str]] = field(default_factory=list)

    def drop(self, reason: str, address: Address) -> None:
        """Count a record, or a part of one, as left out."""
        self.drops[reason] += 1
        places = self.dropped_at.setdefault(reason, [])
        if len(places) < _ADDRESSES:
            places.append(str(address))

    def raise_errors(self, phase: str) -> None:
        """`RunError` that lists the first records that the policy calls errors."""
        if self.errors:
            listed = [message for _, message in sorted(self.errors)[:_LISTED]]
            rest = len(self.errors) - len(listed)
            more = [f"and {rest} more among the records read so far"] if rest else []
            head = f"phase {phase}: {len(self.errors)} record(s) cannot be used"
            raise RunError("\n".join([head, *listed, *more]))


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
    parsed = list(_parsed(source, rows, phase, report))
    if is_chat(phase.task):
        items = list(_chats(parsed, phase, tokenizer, report))
    elif phase.task == "retrieval":
        items = list(_groups(parsed, phase, tokenizer, report))
    else:
        items = list(_texts(parsed, phase, tokenizer, report))
    report.raise_errors(name)
    return items, report


def _parsed(source: Source, rows: Iterable[int], phase: Phase, report: Report) -> Iterable[_Row]:
    for row in rows:
        address, line = source[row]
        try:
            yield _Row(row, address, parse(phase.task, line, address))
        except BadRecord as error:
            _refuse(address, str(error), error.reason, phase, report)


def _refuse(address: Address, message: str, reason: str, phase: Phase, report: Report) -> None:
    if phase.data.on_bad_record == "skip":
        report.drop(reason, address)
    else:
        report.errors.append((address, message))


def _chats(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> Iterable[Item]:
    owners: list[_Row] = []
    groups: list[list[Segment]] = []
    for row in rows:
        try:
            variants = _variants(row.record, phase, tokenizer, report)
        except Unrenderable as error:
            reason = f"unrenderable: {error.reason}"
            _refuse(row.address, f"{row.address}: {error}", reason, phase, report)
            continue
        owners += [row] * len(variants)
        groups += variants
    for row, example in zip(owners, encode(groups, tokenizer), strict=True):
        fitting = _fitted(row, example, phase, tokenizer, report)
        if fitting is None:
            continue
        if not any(fitting.loss_weights):
            report.drop("no trained tokens", row.address)
            continue
        yield _item(row.record_id, fitting)


def _variants(
    record: ChatRecord, phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> list[list[Segment]]:
    """The conversation, or one per assistant turn where the template needs a split."""
    messages = to_messages(record)
    loss_on: LossOn = phase.data.loss_on
    try:
        return [chat_segments(messages, tokenizer, loss_on)]
    except Unrenderable:
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if phase.data.on_unstable == "refuse" or loss_on != "assistant" or len(turns) < 2:
            raise
    split = [chat_segments(messages[: turn + 1], tokenizer, "last_assistant") for turn in turns]
    report.cuts["conversation split into single turns"] += 1
    return split


def _fitted(
    row: _Row,
    example: Example,
    phase: Phase,
    tokenizer: "PreTrainedTokenizerFast",
    report: Report,
) -> Example | None:
    """The example if it fits, or what the over-long policy leaves of it."""
    length = len(example.input_ids)
    if length <= phase.seq_len:
        return example
    if phase.data.on_over_long == "error":
        message = (
            f"{row.address}: {length} tokens do not fit seq_len={phase.seq_len}; remedy: a larger "
            "seq_len, or data.on_over_long: drop or truncate_source"
        )
        report.errors.append((row.address, message))
    elif phase.data.on_over_long == "drop":
        report.drop("over-long", row.address)
    elif not row.record.source:
        report.drop("over-long: no source to shorten", row.address)
    else:
        shorter = shortened(row.record, length, phase.seq_len, phase.data.loss_on, tokenizer)
        if shorter is None:
            report.drop("over-long: does not fit even without its source", row.address)
        else:
            report.cuts["source shortened"] += 1
        return shorter
    return None


def _texts(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> Iterable[Item]:
    """Each text, or its consecutive pieces of at most `seq_len` tokens.

    The first token of a piece is not predicted across the cut. A last piece of one token would
    train nothing, so it takes over a token from the piece before it.
    """
    examples = render_texts([row.record.text for row in rows], tokenizer)
    for row, example in zip(rows, examples, strict=True):
        ids = example.input_ids
        cuts = list(range(0, len(ids), phase.seq_len))
        if len(cuts) > 1:
            report.cuts["text split into pieces"] += 1
            if len(ids) - cuts[-1] == 1 and phase.seq_len > 2:
                cuts[-1] -= 1
        for start, stop in zip(cuts, [*cuts[1:], len(ids)], strict=True):
            if stop - start < 2:
                report.drop("no trained tokens", row.address)
                continue
            weights = [1.0] * (stop - start - 1) + [0.0]
            yield _item(row.record_id, Example(ids[start:stop], weights))


def _groups(
    rows: Sequence[_Row], phase: Phase, tokenizer: "PreTrainedTokenizerFast", report: Report
) -> Iterable[Item]:
    """Query, positive and negatives of each record, every text closed by EOS."""
    assert phase.retrieval is not None
    texts = [retrieval_texts(row.record, phase.retrieval.documents) for row in rows]
    flat = iter(tokenize([text for group in texts for text in group], tokenizer, special=True))
    for row, group in zip(rows, texts, strict=True):
        raw = [next(flat) for _ in group]
        ids = [closed_text(one, tokenizer, phase.seq_len) for one in raw]
        if any(len(one) < 2 for one in ids):
            report.drop("retrieval text without tokens", row.address)
            continue
        unused = len(row.record.answers) + len(row.record.negatives or []) - (len(group) - 1)
        report.cuts["retrieval document beyond the group"] += unused
        report.cuts["retrieval text shortened"] += sum(
            is_cut(one, tokenizer, phase.seq_len) for one in raw
        )
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
        input_ids=np.array(example.input_ids, dtype=np.int32),
        loss_weights=np.array(example.loss_weights, dtype=np.float32),
        seq_lens=[len(example.input_ids)],
        document_ids=[],
    )
