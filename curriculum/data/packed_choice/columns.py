"""A record batch as flat arrays: what the rules are checked on and bins are cut from.

A column of the format is a list or a list of lists a bin. Flat, it is its values in file order with
one array of offsets a level, so that a rule is one pass of numpy over all bins of a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from curriculum.data.packed_choice.bins import Bin

Columns = Mapping[str, "Ragged"]

# Column -> (lists of lists?, type of its values)
_SHARED: dict[str, tuple[bool, Any]] = {
    "input_ids": (False, np.int32),
    "seq_lens": (False, np.int32),
    "positions": (False, np.int32),
    "choice_ids": (True, np.int32),
}
TRAINING = _SHARED | {
    "target_probs": (True, np.float32),
    "weights": (False, np.float32),
    "mix_weights": (True, np.float32),
}
OPTIONAL: dict[str, tuple[bool, Any]] = {"observed_ids": (False, np.int32)}
EVALUATION = _SHARED | {"row_ids": (False, np.int64)}


@dataclass(frozen=True, eq=False)
class Ragged:
    """`values` of all bins. `offsets` [B + 1] cut them into bins; for a list of lists they cut
    rows into bins, and `inner` [R + 1] cuts values into rows."""

    values: np.ndarray
    offsets: np.ndarray
    inner: np.ndarray | None = None

    @property
    def sizes(self) -> np.ndarray:
        """Entries of each bin: values, or rows of a list of lists. int64 [B]."""
        return np.diff(self.offsets)

    @property
    def counts(self) -> np.ndarray:
        """Values of each row of a list of lists. int64 [R]."""
        assert self.inner is not None, "a list of lists"
        return np.diff(self.inner)

    def of(self, bin: int) -> np.ndarray:
        """The values of one bin."""
        start, stop = self.offsets[bin], self.offsets[bin + 1]
        if self.inner is not None:
            start, stop = self.inner[start], self.inner[stop]
        return self.values[start:stop]

    def counts_of(self, bin: int) -> np.ndarray:
        """How many values each row of one bin has."""
        assert self.inner is not None, "a list of lists"
        return np.diff(self.inner[self.offsets[bin] : self.offsets[bin + 1] + 1])


def bin_of(columns: Columns, bin: int, components: int) -> Bin:
    """One bin, in arrays of its own and of the types of the format. `components`: of the mixture,
    0 in an evaluation set."""

    def values(name: str, kind: Any) -> np.ndarray:
        return columns[name].of(bin).astype(kind)

    positions = values("positions", np.int32)
    training = "weights" in columns
    mix = values("mix_weights", np.float32) if training else np.zeros(0, np.float32)
    return Bin(
        input_ids=values("input_ids", np.int32),
        seq_lens=values("seq_lens", np.int32),
        positions=positions,
        choice_ids=values("choice_ids", np.int32),
        choice_counts=columns["choice_ids"].counts_of(bin).astype(np.int32),
        target_probs=values("target_probs", np.float32) if training else np.zeros(0, np.float32),
        weights=values("weights", np.float32) if training else np.zeros(0, np.float32),
        mix_weights=mix.reshape(len(positions), components),
        observed_ids=values("observed_ids", np.int32) if "observed_ids" in columns else None,
        row_ids=values("row_ids", np.int64) if "row_ids" in columns else None,
    )


def columns_of(bins: Sequence[Bin], evaluation: bool) -> Columns:
    """Bins as columns of a training or an evaluation set. `ValueError` if the arrays of a bin are
    not of the shapes that `Bin` says, naming its place in `bins`."""
    for place, one in enumerate(bins):
        _check_shapes(one, place, evaluation)
    choices = _nested(bins, "choice_ids", [one.choice_counts for one in bins])
    columns = {name: _flat(bins, name) for name in ("input_ids", "seq_lens", "positions")}
    columns["choice_ids"] = choices
    if evaluation:
        return columns | {"row_ids": _flat(bins, "row_ids")}
    columns["target_probs"] = _nested(bins, "target_probs", [one.choice_counts for one in bins])
    columns["weights"] = _flat(bins, "weights")
    widths = [np.full(len(one.mix_weights), one.mix_weights.shape[1]) for one in bins]
    columns["mix_weights"] = _nested(bins, "mix_weights", widths)
    if all(one.observed_ids is not None for one in bins):
        columns["observed_ids"] = _flat(bins, "observed_ids")
    return columns


def _check_shapes(one: Bin, place: int, evaluation: bool) -> None:
    choices = int(one.choice_counts.sum())
    wanted = {"choice_ids": choices}
    if not evaluation:
        wanted |= {"target_probs": choices}
    for name, size in wanted.items():
        if len(getattr(one, name)) != size:
            given = len(getattr(one, name))
            raise ValueError(f"bin {place}: {name} has {given} values for {size} choices")
    if not evaluation and one.mix_weights.ndim != 2:
        raise ValueError(f"bin {place}: mix_weights must be rows by components")
    if evaluation and one.row_ids is None:
        raise ValueError(f"bin {place}: a bin of an evaluation set needs row_ids")


def _flat(bins: Sequence[Bin], name: str) -> Ragged:
    arrays = [np.asarray(getattr(one, name)).ravel() for one in bins]
    return Ragged(np.concatenate(arrays), _offsets([len(array) for array in arrays]))


def _nested(bins: Sequence[Bin], name: str, counts: Sequence[np.ndarray]) -> Ragged:
    values = _flat(bins, name).values
    inner = _offsets(np.concatenate(counts))
    return Ragged(values, _offsets([len(each) for each in counts]), inner)


def _offsets(sizes: Any) -> np.ndarray:
    return np.fromiter(chain([0], np.cumsum(sizes, dtype=np.int64)), np.int64)
