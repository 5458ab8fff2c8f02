"""One bin: what a step trains on as one micro-batch of one window."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Bin:
    """T tokens in S segments; R positions that predict an answer, with C choices in all.

    `input_ids` int32 [T]; `seq_lens` int32 [S], sums to T; `positions` int32 [R], strictly
    increasing: the token before the answer, whose hidden state predicts it. In training sets the
    answer follows in the same segment; in eval sets a prompt may end with its position.

    `choice_ids` int32 [C], the candidate tokens row after row, `choice_counts` int32 [R] of them.
    `target_probs` float32 [C], `weights` float32 [R] and `mix_weights` float32 [R, M] (M components
    of the set, perhaps 0) are empty in eval sets ([0], [0], [R, 0]).

    `observed_ids` int32 [R], the answer that was given, where the set has that column. `row_ids`
    int64 [R], the number of a row among all rows, in eval sets.
    """

    input_ids: np.ndarray
    seq_lens: np.ndarray
    positions: np.ndarray
    choice_ids: np.ndarray
    choice_counts: np.ndarray
    target_probs: np.ndarray
    weights: np.ndarray
    mix_weights: np.ndarray
    observed_ids: np.ndarray | None = None
    row_ids: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return len(self.positions)
