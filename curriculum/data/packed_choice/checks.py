"""The rules of a bin, on the flat columns of many bins at once.

`check` stops at the first rule that is broken and says which bin and row break it first. A rule may
rely on those before it: that lengths agree, that numbers are finite.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from curriculum.data.packed_choice.columns import Columns, Ragged
from curriculum.data.packed_choice.refusal import BadSet

VERSION = 1
"""Raise it with any change of the rules: sets that were checked before are then checked again."""

SUM_TOLERANCE = 1e-4
"""Of the probabilities of a row. Float32 rounds each by up to 6e-8, half precision by 5e-4 of it,
and more than rounding must not pass."""

_INT32 = np.iinfo(np.int32)
_PER_ROW = ("choice_ids", "target_probs", "weights", "mix_weights", "observed_ids", "row_ids")


@dataclass(frozen=True)
class Limits:
    """What a set promises. `components`: width of `mix_weights`; `vocab_size` None: not known."""

    seq_len: int
    max_choices: int
    components: int
    vocab_size: int | None
    evaluation: bool


@dataclass(frozen=True)
class Place:
    """Where columns come from: bin 0 of them is bin `first` of `file` and `before + first` of the
    set."""

    file: Path
    first: int = 0
    before: int = 0

    def refuse(self, rule: str, bin: int, row: int | None = None) -> NoReturn:
        raise BadSet(self.file, rule, self.first + bin, row, self.before)


def check(columns: Columns, limits: Limits, place: Place) -> None:
    """`BadSet` for the first rule that a bin breaks."""
    one = _Check(columns, limits, place)
    one.segments()
    one.tokens()
    one.rows()
    one.positions()
    one.choices()
    if "observed_ids" in columns:
        one.ids("observed_ids")
    if not limits.evaluation:
        one.probabilities()
        one.weights()


@dataclass(frozen=True)
class _Check:
    columns: Columns
    limits: Limits
    place: Place

    def segments(self) -> None:
        """Lengths of bins and of their segments."""
        sizes, lens = self.columns["input_ids"].sizes, self.columns["seq_lens"]
        most = self.limits.seq_len
        if (bin := _first((sizes < 1) | (sizes > most))) is not None:
            self.place.refuse(f"has {sizes[bin]} tokens; 1 to seq_len={most} are allowed", bin)
        if (at := _first((lens.values < 1) | (lens.values > most))) is not None:
            rule = f"seq_lens={lens.values[at]}: a segment has 1 to seq_len={most} tokens"
            self._refuse(lens, at, rule)
        totals = _sums(lens.values, lens.offsets)
        if (bin := _first(totals != sizes)) is not None:
            rule = f"seq_lens sum to {totals[bin]}, but the bin has {sizes[bin]} tokens"
            self.place.refuse(rule, bin)

    def tokens(self) -> None:
        self.ids("input_ids")

    def ids(self, name: str) -> None:
        """Token ids lie within the vocabulary."""
        column, most = self.columns[name], self.limits.vocab_size
        limit = _INT32.max + 1 if most is None else most
        # minimum and maximum need no array of their own, unlike a comparison
        if not len(column.values) or (column.values.min() >= 0 and column.values.max() < limit):
            return
        if (at := _first((column.values < 0) | (column.values >= limit))) is not None:
            rule = "a token id is at least 0" if column.values[at] < 0 else (
                "does not fit int32" if most is None else f"the vocabulary has {most} tokens"
            )  # fmt: skip
            self._refuse(
                column, at, f"{name}={column.values[at]}: {rule}", rows=name != "input_ids"
            )

    def rows(self) -> None:
        """Every column that has one entry a row has as many as there are positions."""
        wanted = self.columns["positions"].sizes
        for name in _PER_ROW:
            if name in self.columns:
                sizes = self.columns[name].sizes
                if (bin := _first(sizes != wanted)) is not None:
                    self.place.refuse(
                        f"{name} has {sizes[bin]} entries for {wanted[bin]} positions", bin
                    )
        if self.limits.evaluation and (bin := _first(wanted < 1)) is not None:
            self.place.refuse("has no row; a bin of an evaluation set has at least one", bin)

    def positions(self) -> None:
        """Inside the bin, rising, and (in training sets) with their answer in the same segment."""
        column = self.columns["positions"]
        values, sizes = column.values.astype(np.int64), self.columns["input_ids"].sizes
        bins = np.repeat(np.arange(len(column.sizes)), column.sizes)
        if (at := _first((values < 0) | (values >= sizes[bins]))) is not None:
            rule = f"positions={values[at]}: the bin has positions 0 to {sizes[bins[at]] - 1}"
            self._refuse(column, at, rule, rows=True)
        if (at := _first((np.diff(values) <= 0) & (np.diff(bins) == 0))) is not None:
            rule = f"positions={values[at + 1]} after {values[at]}: positions strictly increase"
            self._refuse(column, at + 1, rule, rows=True)
        if self.limits.evaluation:
            return
        ends = np.cumsum(self.columns["seq_lens"].values, dtype=np.int64)
        absolute = values + self.columns["input_ids"].offsets[:-1][bins]
        answers = absolute + 1
        if (
            at := _first(answers >= ends[np.searchsorted(ends, absolute, side="right")])
        ) is not None:
            rule = (
                f"positions={values[at]}: the answer, the token behind it, lies outside of the "
                "segment of its prompt"
            )
            self._refuse(column, at, rule, rows=True)

    def choices(self) -> None:
        """How many, which ids, and none twice in a row."""
        column, most = self.columns["choice_ids"], self.limits.max_choices
        counts = column.counts
        if (row := _first((counts < 1) | (counts > most))) is not None:
            rule = f"has {counts[row]} choices; 1 to max_choices={most} are allowed"
            self._refuse_row(column, row, rule)
        self.ids("choice_ids")
        keys = np.repeat(np.arange(len(counts)) << 32, counts)
        keys += column.values.astype(np.int64)
        keys.sort()
        if (at := _first(keys[1:] == keys[:-1])) is not None:
            row, token = int(keys[at]) >> 32, int(keys[at]) & 0xFFFFFFFF
            self._refuse_row(
                column, row, f"choice_ids={token}: a choice is given twice in this row"
            )

    def probabilities(self) -> None:
        """One a choice, none below 0, each row's sum 1."""
        column = self.columns["target_probs"]
        counts, wanted = column.counts, self.columns["choice_ids"].counts
        if (row := _first(counts != wanted)) is not None:
            rule = f"has {counts[row]} target_probs for {wanted[row]} choices"
            self._refuse_row(column, row, rule)
        self._finite("target_probs")
        sums = _sums(column.values, column.inner)
        if (row := _first(np.abs(sums - 1) > SUM_TOLERANCE)) is not None:
            rule = f"target_probs sum to {sums[row]:.6g}; they sum to 1 within {SUM_TOLERANCE}"
            self._refuse_row(column, row, rule)

    def weights(self) -> None:
        """Finite, none below 0, and as many mixture weights as there are components."""
        self._finite("weights")
        column, width = self.columns["mix_weights"], self.limits.components
        counts = column.counts
        if (row := _first(counts != width)) is not None:
            rule = f"has {counts[row]} mix_weights for {width} mix_components"
            self._refuse_row(column, row, rule)
        self._finite("mix_weights")

    def _finite(self, name: str) -> None:
        column = self.columns[name]
        if (at := _first(~((column.values >= 0) & (column.values < np.inf)))) is not None:
            rule = f"{name}={column.values[at]:.6g}: must be finite and at least 0"
            self._refuse(column, at, rule, rows=True)

    def _refuse(self, column: Ragged, at: int, rule: str, rows: bool = False) -> NoReturn:
        """About value number `at` of a column, in whichever bin and (if it has any) row it is."""
        if column.inner is not None:
            row = int(np.searchsorted(column.inner, at, side="right")) - 1
            self._refuse_row(column, row, rule)
        bin = _owner(column.offsets, at)
        self.place.refuse(rule, bin, at - int(column.offsets[bin]) if rows else None)

    def _refuse_row(self, column: Ragged, row: int, rule: str) -> NoReturn:
        bin = _owner(column.offsets, row)
        self.place.refuse(rule, bin, row - int(column.offsets[bin]))


def _owner(offsets: np.ndarray, at: int) -> int:
    """Which part of what `offsets` cut holds entry number `at`."""
    return int(np.searchsorted(offsets, at, side="right")) - 1


def _first(broken: np.ndarray) -> int | None:
    """The first place that is true, or None."""
    at = int(broken.argmax()) if len(broken) else 0
    return at if len(broken) and broken[at] else None


def _sums(values: np.ndarray, offsets: Any) -> np.ndarray:
    """Sums of consecutive parts, exact for integers, in float64 otherwise; 0 for an empty part."""
    kind = np.int64 if values.dtype.kind in "iu" else np.float64
    filled = np.diff(offsets) > 0
    sums = np.zeros(len(filled), kind)
    if filled.any():
        sums[filled] = np.add.reduceat(values.astype(kind), offsets[:-1][filled])
    return sums
