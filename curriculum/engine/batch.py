"""Windows become one micro-batch: a single row of tokens, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
import torch

from curriculum.data.windows import Window
from curriculum.engine.choices import Choices, choices_of


@dataclass(frozen=True)
class Batch:
    """Examples (or texts) end to end in one row of T tokens.

    `input_ids`, `position_ids` `[1, T]`; `seq_lens` sums to T. `rows` `[N]` are the positions that
    carry loss, in order, with `labels` `[N]` (the next token) and `weights` `[N]` float32.
    `last` `[S]` is the last position of each text, `text_ids` `[S]` its identity,
    `groups` the number of texts of each retrieval group (query first).
    `windows` is 0 for a dummy, which keeps ranks in step and carries no loss. `window_lens` are the
    tokens of each training window, end to end. Of packed-choice windows, `rows` are the positions
    that predict an answer, without `labels`; `choices` says among which tokens.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    seq_lens: list[int]
    rows: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    last: torch.Tensor
    text_ids: torch.Tensor
    groups: list[int]
    windows: int
    window_lens: list[int] = field(default_factory=list)
    choices: Choices | None = None

    @property
    def tokens(self) -> int:
        """Forward tokens; a dummy counts none."""
        return int(self.input_ids.shape[1]) if self.windows else 0

    @property
    def attended(self) -> int:
        """Sum over tokens of the length of each one's example; a dummy counts none."""
        return sum(length * length for length in self.seq_lens) if self.windows else 0


@dataclass(frozen=True)
class Encoded:
    """Embeddings of every text of a step, without gradient, in rank order.

    `embeddings` `[S, hidden]` float32, `text_ids` `[S]`, `groups` the number of texts of each
    group; this rank's texts start at row `offset`.
    """

    embeddings: torch.Tensor
    text_ids: torch.Tensor
    groups: list[int]
    offset: int


def collate(windows: Sequence[Window], device: torch.device) -> Batch:
    """The micro-batch of some windows; of none, a dummy of one token."""
    if not windows:
        dummy = np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(1, np.float32)
        return _batch(*dummy, np.zeros(1, np.int64), [], 0, device)
    groups = [len(window.seq_lens) for window in windows if len(window.document_ids)]
    choices = choices_of(windows, device)
    weights = np.concatenate([window.loss_weights for window in windows])
    batch = _batch(
        np.concatenate([window.input_ids for window in windows]),
        np.concatenate([window.seq_lens for window in windows]),
        weights if choices is None else np.zeros_like(weights),
        np.concatenate([window.document_ids for window in windows]),
        groups,
        len(windows),
        device,
        [len(window.input_ids) for window in windows],
    )
    if choices is None:
        return batch
    return replace(batch, rows=choices.positions, weights=choices.weights, choices=choices)


def text_batch(texts: Sequence[Sequence[int]], device: torch.device) -> Batch:
    """Token lists as texts to embed; of none, a dummy."""
    if not texts:
        return collate([], device)
    lengths = np.array([len(text) for text in texts], np.int32)
    tokens = np.concatenate([np.asarray(text, np.int32) for text in texts])
    zeros = np.zeros(len(tokens), np.float32)
    return _batch(tokens, lengths, zeros, np.zeros(len(texts), np.int64), [], len(texts), device)


def _batch(
    input_ids: np.ndarray,
    seq_lens: np.ndarray,
    loss_weights: np.ndarray,
    text_ids: np.ndarray,
    groups: list[int],
    windows: int,
    device: torch.device,
    window_lens: Sequence[int] = (),
) -> Batch:
    ends = np.cumsum(seq_lens)
    positions = np.arange(len(input_ids)) - np.repeat(ends - seq_lens, seq_lens)
    rows = np.flatnonzero(loss_weights)

    def tensor(values: np.ndarray, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device, dtype)

    return Batch(
        input_ids=tensor(input_ids)[None],
        position_ids=tensor(positions)[None],
        seq_lens=[int(length) for length in seq_lens],
        rows=tensor(rows),
        labels=tensor(input_ids[rows + 1]),
        weights=tensor(loss_weights[rows], torch.float32),
        last=tensor(ends - 1),
        text_ids=tensor(text_ids),
        groups=groups,
        windows=windows,
        window_lens=list(window_lens),
    )


def rank_share(
    windows: Sequence[Window], rank: int, world: int, micro_batch_size: int
) -> list[list[Window]]:
    """This rank's micro-batches of one step.

    Every rank gets the same number, the last ones possibly empty: ranks that ran different numbers
    of forwards would wait for one another for ever.
    """
    mine = list(windows[rank::world])
    count = ceil(ceil(len(windows) / world) / micro_batch_size)
    return [mine[i * micro_batch_size : (i + 1) * micro_batch_size] for i in range(count)]
