"""The step: one optimizer update over the windows of a step, whatever their split.

The loss of a step is (sum of weighted losses) / (sum of weights), both over all micro-batches and
ranks. Gradients are summed unnormalised and touched once: one factor normalises and clips them.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from curriculum import config as schema
from curriculum.data.windows import Window
from curriculum.engine.batch import Batch, Encoded, collate, rank_share
from curriculum.engine.distributed import World
from curriculum.engine.head import Embed, embed_of
from curriculum.engine.model import TrainModel, no_grad_forwards
from curriculum.engine.optim import (
    build_optimizer,
    local_gradients,
    scale_gradients,
    set_learning_rate,
    squared_norm,
)
from curriculum.engine.stopwatch import Stopwatch
from curriculum.errors import RunError

if TYPE_CHECKING:
    from curriculum.objectives.base import Objective


@dataclass(frozen=True)
class StepResult:
    """Figures of one step over all ranks.

    `loss` is the step's mean, `grad_norm` that of the normalised gradient before clipping.
    `applied` is False if a non-finite number or an empty step kept the weights as they were.
    `recomputed_tokens` went through the model a second time. `example_length` is the mean over
    tokens of the length of the example that each stands in. `stop` is True if any rank asked.
    `times` are this rank's seconds by part (`data`, `forward`, `backward`, `optimizer`) since the
    last step; on a GPU those that are known by now. `note`: why a step may have been dropped.
    """

    loss: float
    grad_norm: float
    forward_tokens: int
    recomputed_tokens: int
    trained_tokens: int
    example_length: float
    applied: bool
    stop: bool
    times: Mapping[str, float]
    note: str | None = None


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
        self.watch = Stopwatch(world.device)

    def reset_optimizer(self) -> None:
        """Forget all moments."""
        self.optimizer = build_optimizer(self.model, self.optim)

    def no_grad_forwards(self) -> AbstractContextManager[None]:
        """The only place for forwards without gradient; reshards every module on exit."""
        return no_grad_forwards(self.model)

    def micro_batches(self, windows: Sequence[Window], micro_batch_size: int) -> list[Batch]:
        """This rank's micro-batches of a step; every rank gets the same number."""
        with self.watch("data"):
            shares = rank_share(windows, self.world.rank, self.world.size, micro_batch_size)
            return [collate(share, self.world.device) for share in shares]

    def step(
        self,
        micro_batches: Sequence[Batch],
        objective: "Objective",
        learning_rate: float,
        stop: bool = False,
    ) -> StepResult:
        """One update. A non-finite loss or norm on any rank drops the step on every rank.

        Raises `RunError` on every rank if the objective failed on one.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self.model.train()
        texts = embed_of(objective.head)
        whole = self.world.size == 1 and len(micro_batches) == 1
        encode = None if whole else partial(self._encode, head=texts or Embed())
        with self.watch("forward"):
            reduces = objective.prepare_step(micro_batches, encode)
        loss_sum, weight_sum = 0.0, 0.0
        for index, (batch, reduce) in enumerate(zip(micro_batches, reduces, strict=True)):
            self.model.set_requires_gradient_sync(index == len(micro_batches) - 1)
            with self.watch("forward"):
                loss, weight = self.model(batch, objective.head, reduce)
            with self.watch("backward"):
                loss.backward()
            loss_sum += loss.detach().double()
            weight_sum += weight.detach().double()
        gradients = local_gradients(self.optimizer)
        failure = getattr(objective, "failure", None)
        tokens = sum(batch.tokens for batch in micro_batches)
        totals = torch.stack(
            [
                torch.as_tensor(value, dtype=torch.float64, device=self.world.device)
                for value in (
                    loss_sum,
                    weight_sum,
                    squared_norm(gradients) / self.world.replicate,
                    tokens,
                    tokens if texts and not whole else 0,
                    sum(_trained(batch, texts) for batch in micro_batches),
                    sum(batch.attended for batch in micro_batches),
                    failure is not None,
                    stop,
                )
            ]
        )
        loss_sum, weight_sum, square, *counts, failures, stops = self.world.sum(totals).tolist()
        if failures:
            raise RunError(self._told(failure) or "the objective failed")
        loss = loss_sum / weight_sum if weight_sum > 0 else math.nan
        norm = math.sqrt(square) / weight_sum if weight_sum > 0 and square >= 0 else math.nan
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            with self.watch("optimizer"):
                self._update(gradients, norm, weight_sum, learning_rate)
        self.optimizer.zero_grad(set_to_none=True)
        forward, recomputed, trained, attended = (int(count) for count in counts)
        return StepResult(
            loss=loss,
            grad_norm=norm,
            forward_tokens=forward,
            recomputed_tokens=recomputed,
            trained_tokens=trained,
            example_length=attended / forward if forward else 0.0,
            applied=applied,
            stop=stops > 0,
            times=self.watch.take(),
            note=None if applied else self._told(_suspicion(objective)),
        )

    def _update(
        self, gradients: list[torch.Tensor], norm: float, weight_sum: float, learning_rate: float
    ) -> None:
        """Normalise and clip by one factor, then take the optimizer's step."""
        limit = self.optim.max_grad_norm
        clip = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))
        scale_gradients(gradients, clip / weight_sum)
        set_learning_rate(self.optimizer, learning_rate)
        self.optimizer.step()

    def _told(self, said: str | None) -> str | None:
        """What the first rank that has something to say says. Every rank must ask."""
        each = enumerate(self.world.gather(said))
        return next((f"{text} (rank {rank})" for rank, text in each if text), None)

    def _encode(self, micro_batches: Sequence[Batch], head: Embed) -> Encoded:
        """Embed this rank's micro-batches without gradient and gather the step's texts."""
        own: list[torch.Tensor] = []

        def keep(embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            own.append(embeddings)
            return embeddings.sum(), embeddings.new_zeros(())

        devices = [self.world.device] if self.world.device.type == "cuda" else []
        # training mode and a forked generator: the second pass then draws the same dropout masks
        with torch.random.fork_rng(devices), no_grad_forwards(self.model, training=True):
            for batch in micro_batches:
                self.model(batch, head, keep)
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


def _trained(batch: Batch, texts: Embed | None) -> int:
    """Positions that carry loss: marked rows, or the pooled position of each text."""
    if batch.choices is not None:
        return batch.choices.trained
    return len(batch.rows) if texts is None else sum(batch.groups)


def _suspicion(objective: "Objective") -> str | None:
    asked = getattr(objective, "suspicion", None)
    return asked() if asked is not None else None
