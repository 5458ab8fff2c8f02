"""Records of task `choice` to bins.

A record becomes one segment: its prompt and, in training and validation sets, the token of one
choice behind it, so that the answer lies in the segment as the format says. That token is the
answer of the record, or its most probable choice (the first of several); no loss sees it, because
nothing behind it is predicted. In evaluation sets a segment is the prompt alone, and rows are
numbered in the order of the records that were kept.

Segments are packed best-fit decreasing. Training bins are then shuffled by `seed`, because packing
orders them by length; bins of other sets stand in the order of their first records.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from curriculum.data.counts import NO_SOURCE, OVER_LONG, Report
from curriculum.data.pack import pack
from curriculum.data.packed_choice.bins import Bin
from curriculum.data.packed_choice.tokens import SLOT, Asked, ask, check_spellings
from curriculum.data.records import BadRecord, Choice, parse
from curriculum.data.render import Unrenderable
from curriculum.data.sources import Address, Source
from curriculum.errors import RunError
from curriculum.naming import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["train", "val", "eval"]
OnOverLong = Literal["error", "drop", "truncate_source"]
OnBadRecord = Literal["error", "skip"]

NO_TOKEN = "a choice is not one distinct token"
NO_PROMPT = "no prompt tokens"
UNKNOWN_MIX = "unknown mix component"
NO_MIX = "no mix in a set with mix components"
_SPELL = "remedy: other choices, or spellings in which each of them is one token"

_LARGEST = float(np.finfo(np.float32).max)
_BATCH_RECORDS = 256


@dataclass(frozen=True, eq=False)
class _Row:
    """A record that is kept: its segment (int32), and what the row of its bin says. `answer`: the
    token of the answer, or of the most probable choice."""

    address: Address | str
    ids: np.ndarray
    choices: list[int]
    targets: list[float]
    weight: float
    mix: dict[str, float]
    answer: int


@dataclass(eq=False)
class Packed:
    """Bins by iteration, made one by one. `records` were read, `rows` of them are packed.

    `spelled`: rows by the spelling of their choices. `report`: what was left out, by reason.
    `observed_ids` are there if every record has an `answer`.
    """

    split: Split
    seq_len: int
    mix_components: tuple[str, ...]
    report: Report
    records: int
    spelled: Counter[str]
    _answered: bool
    _rows: list[_Row] = field(repr=False)
    _windows: list[np.ndarray] = field(repr=False)

    def __len__(self) -> int:
        """How many bins there are."""
        return len(self._windows)

    def __iter__(self) -> Iterator[Bin]:
        return (self._bin(window) for window in self._windows)

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self._rows)

    @property
    def choice_range(self) -> tuple[int, int]:
        """Fewest and most choices of a row."""
        counts = [len(row.choices) for row in self._rows]
        return min(counts), max(counts)

    @property
    def targets(self) -> list[np.ndarray]:
        """Float32 probabilities of each row, in the order of row ids."""
        return [np.array(row.targets, np.float32) for row in self._rows]

    def _bin(self, window: np.ndarray) -> Bin:
        rows = [self._rows[place] for place in window.tolist()]
        sizes = np.array([len(row.ids) for row in rows], np.int32)
        evaluation = self.split == "eval"
        behind = 1 if evaluation else 2  # the prompt's last token, from the end of its segment
        train = [] if evaluation else rows
        mix = [[row.mix.get(name, 0.0) for name in self.mix_components] for row in train]
        return Bin(
            input_ids=np.concatenate([row.ids for row in rows]),
            seq_lens=sizes,
            positions=np.cumsum(sizes, dtype=np.int32) - np.int32(behind),
            choice_ids=np.array([token for row in rows for token in row.choices], np.int32),
            choice_counts=np.array([len(row.choices) for row in rows], np.int32),
            target_probs=np.array([p for row in train for p in row.targets], np.float32),
            weights=np.array([row.weight for row in train], np.float32),
            mix_weights=np.array(mix, np.float32).reshape(len(rows), len(self.mix_components)),
            observed_ids=np.array([row.answer for row in train], np.int32)
            if self._answered and not evaluation
            else None,
            row_ids=window if evaluation else None,
        )


def read_choices(
    source: Source, report: Report, *, strict: bool = False, on_bad_record: OnBadRecord = "error"
) -> Iterator[tuple[Address, Choice]]:
    """The records of a source in order. Bad ones are counted in `report`, or collected in it as
    errors, which `pack_records` raises together with its own."""
    for index in range(len(source)):
        address, line = source[index]
        try:
            yield address, parse("choice", line, address, strict=strict)  # type: ignore[misc]
        except BadRecord as error:
            if on_bad_record == "skip":
                report.drop(error.reason, address)
            else:
                report.errors.append((address, str(error)))


def pack_records(
    records: Iterable[tuple[Address | str, Choice]],
    tokenizer: "PreTrainedTokenizerFast",
    *,
    seq_len: int,
    split: Split,
    spellings: Sequence[str] = (SLOT,),
    answer_prefix: str = "",
    on_over_long: OnOverLong = "error",
    on_bad_record: OnBadRecord = "error",
    mix_components: Sequence[str] | None = None,
    seed: int = 0,
    report: Report | None = None,
    what: str = "choice records",
) -> Packed:
    """Records with their addresses to bins of at most `seq_len` tokens.

    `spellings` and `answer_prefix`: see `tokens`. `on_over_long`: `truncate_source` leaves a record
    out, because its prompt has no source that may be cut. `on_bad_record`: of records that cannot
    be rendered or whose choices are not one distinct token each. `mix_components`: names and order
    of the columns of `mix_weights`; None takes all that occur, sorted, and then either every
    record has a `mix` or none has. All tokens are held in memory.

    Raises `UserError` for wrong spellings, `RunError` (which begins with `what`) that lists the
    records that the policies call errors, or where no record is left.
    """
    check_spellings(spellings)
    made = _Maker(tokenizer, seq_len, split, report or Report(), on_over_long, on_bad_record)
    left = iter(records)
    while batch := list(islice(left, _BATCH_RECORDS)):
        made.add(batch, spellings, answer_prefix)
    components = made.components(mix_components)
    made.report.raise_errors(what)
    if not made.rows:
        drops = ", ".join(f"{reason}: {count}" for reason, count in made.report.drops.items())
        raise RunError(f"{what}: no record is left to pack ({drops or 'there are none'})")
    windows = pack(np.array([len(row.ids) for row in made.rows]), seq_len)
    windows = sorted((np.sort(window) for window in windows), key=lambda window: int(window[0]))
    if split == "train":
        order = np.random.default_rng(seed).permutation(len(windows))
        windows = [windows[place] for place in order.tolist()]
    return Packed(
        split,
        seq_len,
        components,
        made.report,
        made.records,
        made.spelled,
        made.answered,
        made.rows,
        windows,
    )


@dataclass(eq=False)
class _Maker:
    """Records to rows, batch by batch, with what is counted on the way."""

    tokenizer: "PreTrainedTokenizerFast"
    seq_len: int
    split: Split
    report: Report
    on_over_long: OnOverLong
    on_bad_record: OnBadRecord
    rows: list[_Row] = field(default_factory=list)
    records: int = 0
    spelled: Counter[str] = field(default_factory=Counter)
    answered: bool = True

    def add(
        self,
        batch: Sequence[tuple[Address | str, Choice]],
        spellings: Sequence[str],
        answer_prefix: str,
    ) -> None:
        self.records += len(batch)
        asked = ask([record for _, record in batch], self.tokenizer, spellings, answer_prefix)
        for (address, record), one in zip(batch, asked, strict=True):
            if isinstance(one, Unrenderable):
                self._refuse(address, f"unrenderable: {one.reason}", str(one))
            elif not isinstance(one, Asked):
                self._refuse(address, NO_TOKEN, f"{NO_TOKEN}: {one}; {_SPELL}")
            elif not one.prompt:
                self._refuse(address, NO_PROMPT, "the chat template renders an empty prompt")
            elif record.weight > _LARGEST:
                rule = f"weight={record.weight}: does not fit float32"
                self._refuse(address, "weight does not fit float32", rule)
            else:
                self._keep(address, record, one)

    def _keep(self, address: Address | str, record: Choice, asked: Asked) -> None:
        targets = record.targets
        answer = asked.choices[int(np.argmax(targets))]
        ids = asked.prompt if self.split == "eval" else [*asked.prompt, answer]
        if len(ids) > self.seq_len:
            self._left_out(address, len(ids))
            return
        self.spelled[asked.spelling] += 1
        self.rows.append(
            _Row(
                address,
                np.array(ids, np.int32),
                asked.choices,
                targets,
                record.weight,
                {record.mix: 1.0} if isinstance(record.mix, str) else dict(record.mix or {}),
                answer,
            )
        )
        self.answered &= record.answer is not None

    def components(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """Names of the mixture; none in an evaluation set. Rows that do not suit them are
        refused."""
        if self.split == "eval":
            return ()
        found = sorted({name for row in self.rows for name in row.mix})
        names = tuple(found if wanted is None else wanted)
        kept = []
        for row in self.rows:
            unknown = [name for name in row.mix if name not in names]
            if unknown:
                rule = f"is no mix component; {nearest(unknown[0], names)}"
                self._refuse(row.address, UNKNOWN_MIX, f"mix={unknown[0]!r}: {rule}")
            elif names and not row.mix:
                rule = f"mix: not given, but the set has the components {', '.join(names)}"
                self._refuse(row.address, NO_MIX, rule)
            else:
                kept.append(row)
        self.rows = kept
        return names

    def _left_out(self, address: Address | str, length: int) -> None:
        if self.on_over_long == "error":
            message = (
                f"{address}: {length} tokens do not fit seq_len={self.seq_len}; remedy: a larger "
                "seq_len, or on_over_long: drop"
            )
            self.report.errors.append((address, message))
        else:
            self.report.drop(OVER_LONG if self.on_over_long == "drop" else NO_SOURCE, address)

    def _refuse(self, address: Address | str, reason: str, message: str) -> None:
        if self.on_bad_record == "skip":
            self.report.drop(reason, address)
        else:
            self.report.errors.append((address, f"{address}: {message}"))
