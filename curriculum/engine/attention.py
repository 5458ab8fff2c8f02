"""Attention that never lets packed examples see one another, without a mask.

One row holds several examples end to end. The lengths travel as a keyword through the model's
layers to `per_example`, which attends inside each example only: examples of similar length are
laid side by side, so that one kernel serves many of them (on GPUs `varlen` has one for the whole
row). Keywords survive activation
checkpointing; a context variable would not (its recomputation gives wrong gradients silently).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from curriculum.engine import varlen

NAME = "per_example"


def per_example(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    seq_lens: Sequence[int] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each example of one row.

    query `[1, heads, T, d]`, key and value `[1, kv_heads, T, d]`, `sum(seq_lens) == T`; returns
    `[1, T, heads, d]`. `sliding_window=W` lets position i see i - W < j <= i. `softcap` and `s_aux`
    (attention sinks) take an explicit softmax, which SDPA cannot express.
    """
    if seq_lens is None or sum(seq_lens) != query.shape[2]:
        raise RuntimeError(
            f"per-example attention got lengths {seq_lens} for {query.shape[2]} tokens: "
            "this model does not hand keywords on to its attention"
        )
    plain = softcap is None and s_aux is None
    lengths = tuple(seq_lens)
    if plain and varlen.serves(query, value, dropout) and varlen.agrees(query.device, grouped):
        out = varlen.attend(query, key, value, lengths, scaling, sliding_window)
    else:
        out = grouped(query, key, value, lengths, scaling, sliding_window, dropout, softcap, s_aux)
    return out[None], None


def grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_lens: Sequence[int],
    scaling: float | None,
    window: int | None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
) -> torch.Tensor:
    """`per_example` for any device and dtype: `[T, heads, d]`, one call a group of lengths."""
    layout = _layout(tuple(seq_lens), query.device)
    ordered = [
        tensor[0].transpose(0, 1).index_select(0, layout.order) for tensor in (query, key, value)
    ]
    outputs = []
    for (count, length), *parts in zip(
        layout.groups, *(tensor.split(layout.sizes) for tensor in ordered), strict=True
    ):
        q, k, v = (part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)
        mask = _window_mask(length, window, q.device)
        if softcap is not None or s_aux is not None:
            out = _explicit(q, k, v, mask, scaling, dropout, softcap, s_aux)
        else:
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=mask is None and length > 1,
                dropout_p=dropout,
                scale=scaling,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, layout.back)


@dataclass(frozen=True)
class _Layout:
    """Examples of about the same length side by side, each padded at its end to its group's length.

    `order` names the token of the row at each place of the groups; padding repeats an example's
    first token, which no token of the example can see, since attention is causal. `back` names the
    place of each token of the row. `groups` are (examples, length), `sizes` their products.
    """

    order: torch.Tensor
    back: torch.Tensor
    groups: list[tuple[int, int]]
    sizes: list[int]


@lru_cache(maxsize=8)  # the layers of one forward, and its recomputation, ask for the same
def _layout(lengths: tuple[int, ...], device: torch.device) -> _Layout:
    members: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        members.setdefault(_rounded(length), []).append(number)
    sizes = np.array(lengths)
    starts = np.cumsum(sizes) - sizes
    order, groups, back = [], [], np.empty(sizes.sum(), np.int64)
    place = 0
    for numbers in members.values():
        longest = max(lengths[number] for number in numbers)
        inside = np.arange(longest)
        real = inside < sizes[numbers, None]
        tokens = starts[numbers, None] + np.where(real, inside, 0)
        back[tokens[real]] = place + np.flatnonzero(real)
        order.append(tokens.ravel())
        groups.append((len(numbers), longest))
        place += tokens.size
    return _Layout(
        torch.from_numpy(np.concatenate(order)).to(device),
        torch.from_numpy(back).to(device),
        groups,
        [count * length for count, length in groups],
    )


def _rounded(length: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, 128, ...: at most half of a group is padding."""
    power = 16
    while power < length:
        power *= 2
    return power if power == 16 or length > power * 3 // 4 else power * 3 // 4


def _window_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """`[length, length]`, True where attention is allowed; None if plain causal is enough."""
    if window is None or length <= window:
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < window)


def _explicit(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    dropout: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(2, 3) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = scores.float().masked_fill(~mask, float("-inf"))
    if s_aux is not None:
        sinks = s_aux.float().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]]
    return F.dropout(weights, dropout, training=dropout > 0).to(v.dtype) @ v


def register() -> None:
    """Make `per_example` known to `transformers`.

    No mask function is registered under the name on purpose: then no mask is built.
    """
    AttentionInterface.register(NAME, per_example)
