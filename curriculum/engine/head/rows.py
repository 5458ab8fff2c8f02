"""What the head gives an objective of tokens, and the losses to be had from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from curriculum.config import Loss
from curriculum.engine.batch import Batch
from curriculum.engine.head.cross_entropy import chunked_cross_entropy
from curriculum.engine.head.transform import Transform

Sums = tuple[torch.Tensor, torch.Tensor]
Reduce = Callable[[Any], Sums]

PLAIN = Loss()


@dataclass(frozen=True)
class Rows:
    """What the head `rows` gives: hidden states `[N, hidden]` of the positions that carry loss."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    transform: Transform
    chunk_rows: int

    def cross_entropy(
        self, labels: torch.Tensor, weights: torch.Tensor, loss: Loss = PLAIN
    ) -> torch.Tensor:
        """The sum over rows of `weights[i] * -log softmax(logits[i])[labels[i]]`, a scalar.

        labels `[N]` int64, weights `[N]` float32; `loss` adds smoothing and z-loss. Zero rows give
        0 with a gradient of zeros, so that a rank without a trained row still takes part in every
        collective.
        """
        return self._loss(labels[:, None], weights[:, None], loss)

    def soft_cross_entropy(
        self,
        tokens: torch.Tensor,
        probabilities: torch.Tensor,
        weights: torch.Tensor,
        loss: Loss = PLAIN,
    ) -> torch.Tensor:
        """The sum over rows i and tokens k of `weights[i] * p[i, k] * -log softmax[tokens[i, k]]`.

        A row's target is a distribution over K tokens: a teacher's top k, some candidates, or with
        `tokens = arange(vocabulary).expand(N, -1)` all. tokens `[N, K]` int64, probabilities p
        `[N, K]` and weights `[N]` float32. Rows with fewer tokens are padded with probability 0
        and any valid token. Probabilities need not sum to 1: the gradient of a row is
        `softmax(x) * sum(y) - y`. The loss is least, but not 0, where the softmax equals the
        target: subtract the target's entropy for the divergence.
        """
        return self._loss(tokens, probabilities * weights[:, None], loss)

    def _loss(self, tokens: torch.Tensor, masses: torch.Tensor, loss: Loss) -> torch.Tensor:
        return chunked_cross_entropy(
            self.hidden,
            self.weight,
            self.bias,
            tokens,
            masses,
            self.transform,
            loss,
            self.chunk_rows,
        )


def token_cross_entropy(batch: Batch, loss: Loss = PLAIN) -> Reduce:
    """A micro-batch's sum of weighted next-token losses, and the sum of their weights."""

    def reduce(rows: Rows) -> Sums:
        return rows.cross_entropy(batch.labels, batch.weights, loss), batch.weights.sum()

    return reduce
