"""The average of several finished phases' weights (Wortsman et al., 2022, "Model soups")."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from curriculum.engine import checkpoint


@torch.no_grad()
def average(parents: Sequence[tuple[Path, float]], model: torch.nn.Module) -> None:
    """Fill a model with the weighted sum of checkpoints of it; the weights sum to one.

    Summed in float64, each rank over its own shards: at any world size the result is that of whole
    tensors, bit for bit. Needs 8 bytes a parameter of the shard beside the model.
    """
    shards = [_local(parameter) for parameter in model.parameters()]
    sums = [torch.zeros_like(shard, dtype=torch.float64) for shard in shards]
    for directory, weight in parents:
        checkpoint.load(directory, model, None)
        for total, shard in zip(sums, shards, strict=True):
            total.add_(shard.double(), alpha=weight)
    for total, shard in zip(sums, shards, strict=True):
        shard.copy_(total)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
