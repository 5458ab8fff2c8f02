"""This rank's shards of the gradients: their norm, and the one multiplication they get."""

import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard, sharing storage with the whole."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def local_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """This rank's shard of every gradient, sharing storage with it."""
    return [
        local(p.grad)
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]


def squared_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Sum of squares of these shards, a float64 scalar."""
    norms = torch._foreach_norm(gradients)
    return torch.stack([norm.double() for norm in norms]).square().sum()


def scale_gradients(gradients: list[torch.Tensor], factor: float) -> None:
    torch._foreach_mul_(gradients, factor)
