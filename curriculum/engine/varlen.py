"""Attention of all examples of a row by one kernel, on GPUs that have it.

Written against torch 2.11 to 2.13 and tried on a CPU with the kernel replaced by its definition:
`agrees` compares it with the grouped attention once in a process, before anything relies on it.
"""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch.nn.attention.varlen import varlen_attn

log = logging.getLogger(__name__)

Attend = Callable[..., torch.Tensor]


def serves(query: torch.Tensor, value: torch.Tensor, dropout: float) -> bool:
    """Whether the kernel takes these: half precision, no dropout, flash attention's widths."""
    width = query.shape[-1]
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and dropout == 0.0
        and width == value.shape[-1]
        and width % 8 == 0
        and width <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: Sequence[int],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention inside each example; shapes as in `attention.per_example`, result `[T, ..]`.

    Heads of keys and values are repeated, which every release takes: torch 2.13 wants a keyword
    for fewer of them that 2.11 does not know.
    """
    groups = query.shape[1] // key.shape[1]
    q, k, v = (
        tensor[0].transpose(0, 1).repeat_interleave(repeats, 1)
        for tensor, repeats in ((query, 1), (key, groups), (value, groups))
    )
    bounds, longest = _bounds(tuple(lengths), query.device), max(lengths)
    sides = (-1, 0) if window is None else (window - 1, 0)
    return varlen_attn(q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=sides)


@lru_cache(maxsize=8)
def _bounds(lengths: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Where examples begin, and the end: int32, made once for all layers of a forward."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


@lru_cache(maxsize=8)
def agrees(device: torch.device, reference: Attend, tolerance: float = 3e-2) -> bool:
    """Whether the kernel computes what `reference` does, on a small case in bfloat16.

    Without gradient, so that it disturbs nothing that is being recorded where it is first asked.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = [5, 17, 1]
    q, k, v = (
        torch.randn(1, heads, sum(lengths), 16, generator=generator).to(device, torch.bfloat16)
        for heads in (4, 2, 2)
    )
    try:
        with torch.no_grad():
            worst = max(
                (attend(q, k, v, lengths, 0.3, window) - reference(q, k, v, lengths, 0.3, window))
                .abs()
                .max()
                .item()
                for window in (None, 4)
            )
    except RuntimeError as error:
        log.warning("torch's varlen attention is not used: %s", str(error).splitlines()[0])
        return False
    if not worst <= tolerance:
        log.warning("torch's varlen attention is not used: it differs by %.3g", worst)
    return worst <= tolerance
