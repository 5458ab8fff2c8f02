"""The optimizer, and one pass over the gradients that normalises and clips them together."""

import torch

from curriculum import config as schema


def build_optimizer(model: torch.nn.Module, optim: schema.Optim) -> torch.optim.Optimizer:
    """Fused AdamW over sharded float32 parameters; matrices decay, norms and biases do not.

    Parameters are taken by name, so that a tied tensor appears once.
    """
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=optim.lr,
        betas=optim.betas,
        eps=optim.eps,
        fused=True,
    )


def local_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """This rank's shard of every gradient, sharing storage with it."""
    return [
        p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
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
