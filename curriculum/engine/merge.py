"""The average of several finished phases' weights (Wortsman et al., 2022, "Model soups")."""

from collections.abc import Sequence
from pathlib import Path

import torch

from curriculum.engine import checkpoint, lora
from curriculum.engine.model import TrainModel
from curriculum.engine.optim.gradients import local


@torch.no_grad()
def average(parents: Sequence[tuple[Path, float]], model: TrainModel) -> None:
    """Fill a model with the weighted sum of checkpoints of it; the weights sum to one.

    Summed in float64, each rank over its own shards: at any world size the result is that of whole
    tensors, bit for bit. Needs 8 bytes a parameter of the shard beside the model, and with adapters
    12 of one whole matrix. What is averaged then is each parent's weights with its adapters added;
    the sum is the new base, under fresh adapters, which change nothing yet.
    """
    parameters = list(model.parameters())
    sums = [torch.zeros_like(local(p), dtype=torch.float64) for p in parameters]
    for directory, weight in parents:
        checkpoint.load(directory, model, None)
        for parameter, total in zip(parameters, sums, strict=True):
            total.add_(local(parameter).double(), alpha=weight)
        of = dict(zip(parameters, sums, strict=True))
        for parameter, change in lora.changes(model.lm):
            of[parameter].add_(local(change), alpha=weight)
    for parameter, total in zip(parameters, sums, strict=True):
        local(parameter).copy_(total)
    lora.reset_adapters(model.lm)
