"""The choices of a micro-batch: which positions predict an answer, and among which tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from curriculum.data.windows import Window


@dataclass(frozen=True)
class Choices:
    """R rows of at most K candidate tokens.

    `positions` `[R]` are those whose hidden state predicts the answer, in the micro-batch's row of
    tokens. `ids` `[R, K]` are a row's candidates, the first `counts` `[R]` of its slots; those
    beyond hold 0. `target_probs` `[R, K]` (0 in slots beyond), `weights` `[R]` and `mix_weights`
    `[R, M]` are float32, zeros where the data has none. `mix_components` are the M names. `trained`
    is how many rows have a weight.
    """

    positions: torch.Tensor
    ids: torch.Tensor
    counts: torch.Tensor
    target_probs: torch.Tensor
    weights: torch.Tensor
    mix_weights: torch.Tensor
    mix_components: list[str]
    trained: int


def choices_of(windows: Sequence[Window], device: torch.device) -> Choices | None:
    """The rows of all windows, one window after another; None if these are no choice windows."""
    bins = [window.choice for window in windows if window.choice is not None]
    if not bins:
        return None
    assert len(bins) == len(windows), "windows with and without choices in one micro-batch"
    counts = np.concatenate([one.choice_counts for one in bins]).astype(np.int64)
    slots = np.arange(max(counts, default=0)) < counts[:, None]
    starts = np.cumsum([0, *(len(window.input_ids) for window in windows)])[:-1]
    positions = [one.positions + start for one, start in zip(bins, starts, strict=True)]

    def whole(name: str, size: int) -> np.ndarray:
        """The values of all bins end to end, zeros in place of a column that they do not have."""
        values = np.concatenate([getattr(one, name) for one in bins])
        return values if len(values) else np.zeros(size, np.float32)

    def padded(values: np.ndarray) -> np.ndarray:
        table = np.zeros(slots.shape, values.dtype)
        table[slots] = values
        return table

    def tensor(values: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)

    weights = whole("weights", len(counts))
    return Choices(
        positions=tensor(np.concatenate(positions), torch.long),
        ids=tensor(padded(whole("choice_ids", 0)), torch.long),
        counts=tensor(counts, torch.long),
        target_probs=tensor(padded(whole("target_probs", int(counts.sum())))),
        weights=tensor(weights),
        mix_weights=tensor(np.concatenate([one.mix_weights for one in bins])),
        mix_components=list(windows[0].mix_components),
        trained=int(np.count_nonzero(weights)),
    )
