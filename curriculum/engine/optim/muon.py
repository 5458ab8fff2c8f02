"""Muon: momentum whose matrices are made orthogonal before they move the weights.

Momentum lives in shards, like the weights. A matrix is made orthogonal as a whole: every rank
sends its rows of each matrix to the one rank that owns it, owners iterate, rows come back. That is
two exchanges a step, and each matrix is computed once. Expert tensors are stacks of matrices split
between experts, so each rank has its own whole and exchanges nothing.

`torch.optim.Muon` has the same update, but for 2-D tensors and in bfloat16 alone; on sharded
tensors each of its products becomes an exchange of its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from curriculum.engine.optim.gradients import local
from curriculum.errors import RunError

Orthogonalise = Callable[[torch.Tensor], torch.Tensor]


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024) over matrices `[m, n]` and stacks of matrices `[k, m, n]`.

    `b <- momentum * b + (1 - momentum) * g`; `u` is `b`, or with `nesterov`
    `momentum * b + (1 - momentum) * g`; `w <- (1 - lr * weight_decay) * w - lr * ratio * NS(u)`,
    where `NS` is `newton_schulz` and `ratio` is `lr_adjustment`. Parameters without a gradient are
    left as they are: neither moved, nor decayed, nor their momentum touched.

    Raises `RunError` for a tensor that is sharded otherwise than by its first axis.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        lr: float,
        momentum: float,
        nesterov: bool,
        adjust_lr_fn: str,
        ns_coefficients: tuple[float, float, float],
        ns_steps: int,
        ns_eps: float,
        ns_dtype: torch.dtype,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "adjust_lr_fn": adjust_lr_fn,
            "weight_decay": 0.0,
            "moments": ("momentum_buffer",),
        }
        super().__init__(groups, defaults)
        self.ns_dtype = ns_dtype
        self.orthogonalise: Orthogonalise = lambda matrices: newton_schulz(
            matrices, ns_coefficients, ns_steps, ns_eps
        )
        for group in self.param_groups:
            for p in group["params"]:
                if isinstance(p, DTensor) and p.placements[-1] != Shard(0):
                    raise RunError(
                        f"optim=muon: a weight {tuple(p.shape)} is sharded as {p.placements}; "
                        "matrices have to be sharded by rows"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            weights = [local(p) for p in params]
            gradients = [local(p.grad) for p in params]
            buffers = [local(self._buffer(p)) for p in params]
            torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
            updates = buffers
            if group["nesterov"]:
                updates = torch._foreach_lerp(gradients, buffers, group["momentum"])
            directions = self._directions(params, [u.to(self.ns_dtype) for u in updates])
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            for p, weight, direction in zip(params, weights, directions, strict=True):
                ratio = lr_adjustment(group["adjust_lr_fn"], *p.shape[-2:])
                weight.add_(direction, alpha=-group["lr"] * ratio)

    def _buffer(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return state["momentum_buffer"]

    def _directions(
        self, params: Sequence[torch.Tensor], updates: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """This rank's shards of the orthogonal updates, in the order of `params`."""
        split = {i for i, p in enumerate(params) if p.ndim == 2 and _ranks(p) > 1}
        whole = [i for i in range(len(params)) if i not in split]
        found = dict(
            zip(whole, in_batches([updates[i] for i in whole], self.orthogonalise), strict=True)
        )
        if split:
            places = sorted(split)
            rows = exchanged(
                [updates[i] for i in places],
                [params[i].shape for i in places],
                _group(params[places[0]]),
                self.orthogonalise,
            )
            found.update(zip(places, rows, strict=True))
        return [found[i] for i in range(len(params))]


def newton_schulz(
    matrices: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Nearly `U V^T` of each matrix `U S V^T` in `[k, m, n]`, in the dtype given.

    The quintic `x <- a x + b (x x^T) x + c (x x^T)^2 x` on the matrix divided by its Frobenius
    norm. With the usual coefficients five steps take singular values above 0.003 or so of the norm
    into 0.68 .. 1.14; smaller ones are enlarged by up to a^5, those of zero stay zero. `eps` bounds
    the norm from below. Source: https://kellerjordan.github.io/posts/muon/
    """
    a, b, c = coefficients
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    x = x / norm.clamp(min=eps).to(x.dtype)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def lr_adjustment(kind: str, rows: int, columns: int) -> float:
    """Factor of the learning rate for a matrix of this shape; names as in `torch.optim.Muon`.

    original: `sqrt(max(1, rows / columns))` (Jordan et al., 2024)
    match_rms_adamw: `0.2 sqrt(max(rows, columns))`, which gives updates the root mean square that
    AdamW's have, so that one learning rate serves both (Liu et al., 2025, arXiv 2502.16982)
    """
    if kind == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


def in_batches(
    matrices: Sequence[torch.Tensor], orthogonalise: Orthogonalise, elements: int = 1 << 22
) -> list[torch.Tensor]:
    """Orthogonalise matrices and stacks of matrices, those of equal shape together.

    `elements` bounds the memory of a batch: larger ones are no faster.
    """
    places: dict[torch.Size, list[int]] = {}
    for place, matrix in enumerate(matrices):
        places.setdefault(matrix.shape, []).append(place)
    found: dict[int, torch.Tensor] = {}
    for shape, same in places.items():
        count = max(1, elements // max(1, shape.numel()))
        for start in range(0, len(same), count):
            chosen = same[start : start + count]
            stack = torch.stack([matrices[place] for place in chosen]).view(-1, *shape[-2:])
            done = orthogonalise(stack) if len(stack) else stack
            parts = done.reshape(len(chosen), *shape).unbind()
            found.update(zip(chosen, parts, strict=True))
    return [found[place] for place in range(len(matrices))]


def exchanged(
    shards: Sequence[torch.Tensor],
    shapes: Sequence[torch.Size],
    group: dist.ProcessGroup,
    orthogonalise: Orthogonalise,
) -> list[torch.Tensor]:
    """Rows of the orthogonal form of matrices of `shapes`, of which each rank gives its `shards`.

    Every rank of the group calls this with the same shapes in the same order.
    """
    ranks, rank = group.size(), group.rank()
    owner = owners(shapes, ranks)
    by_owner = sorted(range(len(shapes)), key=owner.__getitem__)
    mine = [i for i in by_owner if owner[i] == rank]
    sizes = [[count * shape[1] for count in rows(shape[0], ranks)] for shape in shapes]
    sent = [sum(sizes[i][rank] for i in by_owner if owner[i] == r) for r in range(ranks)]
    received = [sum(sizes[i][r] for i in mine) for r in range(ranks)]

    outgoing = torch.cat([shards[i].reshape(-1) for i in by_owner])
    incoming = outgoing.new_empty(sum(received))
    dist.all_to_all_single(incoming, outgoing, received, sent, group=group)
    # rows are contiguous: the shards of a matrix, in the order of ranks, are the matrix
    pieces = [
        part.split([sizes[i][r] for i in mine]) for r, part in enumerate(incoming.split(received))
    ]
    matrices = [
        torch.cat([pieces[r][k] for r in range(ranks)]).view(shapes[i]) for k, i in enumerate(mine)
    ]
    done = [m.reshape(-1) for m in in_batches(matrices, orthogonalise)]
    parts = [m.split(sizes[i]) for m, i in zip(done, mine, strict=True)]
    incoming = torch.cat([part[r] for r in range(ranks) for part in parts] or [incoming])
    dist.all_to_all_single(outgoing, incoming, sent, received, group=group)
    own = outgoing.split([sizes[i][rank] for i in by_owner])
    found = {i: part.view(shards[i].shape) for i, part in zip(by_owner, own, strict=True)}
    return [found[i] for i in range(len(shapes))]


def owners(shapes: Sequence[torch.Size], ranks: int) -> list[int]:
    """The rank that computes each matrix: the costliest first, each to the least busy rank."""
    busy = [0] * ranks
    owner = [0] * len(shapes)
    costs = [shape.numel() * min(shape) for shape in shapes]
    for place in sorted(range(len(shapes)), key=lambda i: -costs[i]):
        owner[place] = busy.index(min(busy))
        busy[owner[place]] += costs[place]
    return owner


def rows(total: int, ranks: int) -> list[int]:
    """Rows of each rank's shard, as `torch.chunk` cuts them: equal, then fewer, then none."""
    most = -(-total // ranks)
    return [max(0, min(most, total - rank * most)) for rank in range(ranks)]


def _group(parameter: torch.Tensor) -> dist.ProcessGroup:
    """The ranks that hold the shards: the last axis of the mesh; others are replicas."""
    assert isinstance(parameter, DTensor)
    return parameter.device_mesh.get_group(parameter.device_mesh.ndim - 1)


def _ranks(parameter: torch.Tensor) -> int:
    return _group(parameter).size() if isinstance(parameter, DTensor) else 1
