"""The step: one optimizer update over the windows of a step, whatever their split.

The loss of a step is (sum of weighted losses) / (sum of weights), both over all micro-batches and
ranks. Gradients are summed unnormalised and touched once: one factor normalises and clips them.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from curriculum import config as schema
from curriculum.data.windows import Window
from curriculum.engine.batch import Batch, Encoded, collate, rank_share
from curriculum.engine.distributed import World
from curriculum.engine.model import TrainModel, no_grad_forwards
from curriculum.engine.optim import (
    build_optimizer,
    local_gradients,
    scale_gradients,
    set_learning_rate,
    squared_norm,
)

if TYPE_CHECKING:
    from curriculum.objectives.base import Objective


@dataclass(frozen=True)
class StepResult:
    """Figures of one step over all ranks.

    `loss` is the step's mean, `grad_norm` that of the normalised gradient before clipping.
    `applied` is False if a non-finite number or an empty step kept the weights as they were.
    `recomputed_tokens` went through the model a second time. `stop` is True if any rank asked.
    """

    loss: float
    grad_norm: float
    forward_tokens: int
    recomputed_tokens: int
    trained_tokens: int
    applied: bool
    stop: bool


class Engine:
    """A sharded model, its optimizer, and the one way to update them."""

    def __init__(
        self, model: TrainModel, world: World, engine: schema.Engine, optim: schema.Optim
    ) -> None:
        self.model = model
        self.world = world
        self.settings = engine
        self.optim = optim
        self.optimizer = build_optimizer(model, optim)

    def reset_optimizer(self) -> None:
        """Forget all moments."""
        self.optimizer = build_optimizer(self.model, self.optim)

    def no_grad_forwards(self) -> AbstractContextManager[None]:
        """The only place for forwards without gradient; reshards every module on exit."""
        return no_grad_forwards(self.model)

    def micro_batches(self, windows: Sequence[Window], micro_batch_size: int) -> list[Batch]:
        """This rank's micro-batches of a step; every rank gets the same number."""
        shares = rank_share(windows, self.world.rank, self.world.size, micro_batch_size)
        return [collate(share, self.world.device) for share in shares]

    def step(
        self,
        micro_batches: Sequence[Batch],
        objective: "Objective",
        learning_rate: float,
        stop: bool = False,
    ) -> StepResult:
        """One update. A non-finite loss or norm on any rank drops the step on every rank."""
        self.optimizer.zero_grad(set_to_none=True)
        self.model.train()
        whole = self.world.size == 1 and len(micro_batches) == 1
        reduces = objective.prepare_step(micro_batches, None if whole else self._encode)
        loss_sum, weight_sum = 0.0, 0.0
        for index, (batch, reduce) in enumerate(zip(micro_batches, reduces, strict=True)):
            self.model.set_requires_gradient_sync(index == len(micro_batches) - 1)
            loss, weight = self.model(batch, objective.head, reduce)
            loss.backward()
            loss_sum += loss.detach().double()
            weight_sum += weight.detach().double()
        gradients = local_gradients(self.optimizer)
        tokens = sum(batch.tokens for batch in micro_batches)
        cached = objective.head == "embed" and not whole
        totals = torch.stack(
            [
                torch.as_tensor(value, dtype=torch.float64, device=self.world.device)
                for value in (
                    loss_sum,
                    weight_sum,
                    squared_norm(gradients) / self.world.replicate,
                    tokens,
                    tokens if cached else 0,
                    sum(_trained(batch, objective) for batch in micro_batches),
                    stop,
                )
            ]
        )
        loss_sum, weight_sum, square, *counts, stops = self.world.sum(totals).tolist()
        loss = loss_sum / weight_sum if weight_sum else math.nan
        norm = math.sqrt(square) / weight_sum if weight_sum and square >= 0 else math.nan
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            limit = self.optim.max_grad_norm
            clip = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
            scale_gradients(gradients, clip / weight_sum)
            set_learning_rate(self.optimizer, learning_rate)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        forward, recomputed, trained = (int(count) for count in counts)
        return StepResult(loss, norm, forward, recomputed, trained, applied, stops > 0)

    def _encode(self, micro_batches: Sequence[Batch]) -> Encoded:
        """Embed this rank's micro-batches without gradient and gather the step's texts."""
        own: list[torch.Tensor] = []

        def keep(embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            own.append(embeddings)
            return embeddings.sum(), embeddings.new_zeros(())

        devices = [self.world.device] if self.world.device.type == "cuda" else []
        # training mode and a forked generator: the second pass then draws the same dropout masks
        with torch.random.fork_rng(devices), no_grad_forwards(self.model, training=True):
            for batch in micro_batches:
                self.model(batch, "embed", keep)
        kept = [part for part, batch in zip(own, micro_batches, strict=True) if batch.groups]
        ids = [batch.text_ids for batch in micro_batches if batch.groups]
        hidden = own[0].shape[1]
        mine = torch.cat(kept) if kept else own[0].new_zeros(0, hidden)
        my_ids = torch.cat(ids) if ids else micro_batches[0].text_ids.new_zeros(0)
        groups = my_ids.new_tensor([size for batch in micro_batches for size in batch.groups])
        shares = self.world.gather_rows(mine)
        return Encoded(
            embeddings=torch.cat(shares),
            text_ids=torch.cat(self.world.gather_rows(my_ids)),
            groups=torch.cat(self.world.gather_rows(groups)).tolist(),
            offset=sum(len(share) for share in shares[: self.world.rank]),
        )


def _trained(batch: Batch, objective: "Objective") -> int:
    """Positions that carry loss: marked rows, or the pooled position of each text."""
    return sum(batch.groups) if objective.head == "embed" else len(batch.rows)
