"""The contract between an objective and the engine."""

from collections.abc import Callable, Sequence
from typing import Protocol

from curriculum.config import Phase
from curriculum.engine.batch import Batch, Encoded
from curriculum.engine.head import Head, Reduce, token_cross_entropy

Encode = Callable[[Sequence[Batch]], Encoded]


class Objective(Protocol):
    """A step's loss is (sum of loss sums) / (sum of weight sums) over micro-batches and ranks."""

    head: Head

    def prepare_step(self, micro_batches: Sequence[Batch], encode: Encode | None) -> list[Reduce]:
        """One `reduce` a micro-batch: head output -> (loss_sum, weight_sum).

        `encode` embeds the whole step without gradient and gathers it over ranks; every rank must
        call it or none. It is None where this rank's only micro-batch is the whole step, whose
        head output then holds everything.
        """
        ...


class TokenObjective:
    """Weighted next-token cross entropy on the rows that the data marks, as `phase.loss` says."""

    head: Head = "rows"

    def __init__(self, phase: Phase) -> None:
        self.loss = phase.loss

    def prepare_step(self, micro_batches: Sequence[Batch], encode: Encode | None) -> list[Reduce]:
        return [token_cross_entropy(batch, self.loss) for batch in micro_batches]
