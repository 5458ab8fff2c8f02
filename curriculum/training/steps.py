"""The steps of one phase: from a position in its data to an update of the weights.

The position is one integer, steps taken x batch_size, so that a phase goes on anywhere, at any
number of ranks and any micro-batch size.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from curriculum.config import Config
from curriculum.data.order import window_index
from curriculum.data.window_set import WindowSet
from curriculum.data.windows import prepare
from curriculum.engine.step import Engine, StepResult
from curriculum.objectives.base import Objective
from curriculum.plan.budget import micro_batch_size
from curriculum.plan.schedule import learning_rates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class PhaseWork:
    """What the steps of a phase are made of. `rates`: the learning rate of each, counted from 0."""

    name: str
    seed: int
    steps: int
    batch_size: int
    micro_batch_size: int
    windows: WindowSet
    objective: Objective
    rates: Callable[[int], float]


@dataclass(frozen=True)
class Step:
    """A step that was taken; `number` of them are done. `seconds`: all it took, data included."""

    number: int
    rate: float
    seconds: float
    result: StepResult


def phase_work(
    config: Config, name: str, objective: Objective, tokenizer: "PreTrainedTokenizerFast"
) -> PhaseWork:
    """Open the data of a phase. `config` is scaled, and the phase has its steps."""
    phase = config.plan.phases[name]
    assert phase.steps is not None
    return PhaseWork(
        name=name,
        seed=config.seed,
        steps=phase.steps,
        batch_size=phase.batch_size,
        micro_batch_size=micro_batch_size(phase, config.engine),
        windows=prepare(config, name, "train", tokenizer, phase.steps * phase.batch_size),
        objective=objective,
        rates=learning_rates(config, name),
    )


def take_steps(
    work: PhaseWork, engine: Engine, first: int, stop: Callable[[], bool]
) -> Iterator[Step]:
    """Steps `first` and on, each taken when it is asked for. Every rank takes the same ones.

    `stop`: whether a signal asked this rank to stop; the result says whether it asked any.
    """
    for done in range(first, work.steps):
        began = time.perf_counter()
        position = done * work.batch_size
        with engine.watch("data"):
            batch = [
                work.windows[window_index(position + i, len(work.windows), work.seed, work.name)]
                for i in range(work.batch_size)
            ]
        torch.manual_seed(stream(work.seed, work.name, done, engine.world.rank))
        rate = work.rates(done)
        micro_batches = engine.micro_batches(batch, work.micro_batch_size)
        result = engine.step(micro_batches, work.objective, rate, stop=stop())
        yield Step(done + 1, rate, time.perf_counter() - began, result)


def stream(seed: int, phase: str, step: int, rank: int) -> int:
    """Seed of the random stream of one step on one rank."""
    text = f"{seed}/{phase}/{step}/{rank}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
