"""Logits of a few candidate tokens a row: the softmax over a question's choices needs no others.

The head's rows of the candidates are gathered, chunk by chunk of rows, and multiplied with the
hidden states, in float32 whatever the model computes in: a calibrated probability has more digits
than bfloat16. Nothing here has the size of the vocabulary but the gradient of the head itself,
which an optimizer needs in full.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from curriculum.engine.choices import Choices
from curriculum.engine.head.transform import Transform

PAD = torch.finfo(torch.float32).min
"""The logit of a slot beyond a row's candidates. A softmax over the padded row gives it exactly 0,
and its log-probability is finite, so that 0 times it is 0; with minus infinity it would be NaN."""


def choice_logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    choices: Choices | None,
    transform: Transform,
    chunk_rows: int,
) -> torch.Tensor:
    """Float32 logits `[R, K]` of R rows' candidates, as the model transforms them, differentiable.

    hidden `[R, hidden]`, weight `[vocabulary, hidden]`. Slots beyond a row's candidates hold `PAD`,
    and whatever gradient reaches them is dropped. None stands for no rows: `[0, 0]`, connected to
    the head, so that a rank without rows takes part in every collective.
    """
    if choices is None:
        ids = torch.zeros(0, 0, dtype=torch.long, device=hidden.device)
        counts = ids.new_zeros(0)
    else:
        ids, counts = choices.ids, choices.counts
    arguments = (hidden, weight, bias, ids, counts, transform, chunk_rows)
    return _ChoiceLogits.apply(*arguments, torch.is_grad_enabled())


def padded_logits(flat: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Logits `[R, K]` from those of R rows end to end, as `choice_logits` pads them."""
    width = int(counts.max()) if len(counts) else 0
    real = torch.arange(width, device=flat.device) < counts[:, None]
    return flat.new_full(real.shape, PAD).masked_scatter_(real, flat)


class _ChoiceLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        ids: torch.Tensor,
        counts: torch.Tensor,
        transform: Transform,
        chunk_rows: int,
        differentiate: bool,
    ) -> torch.Tensor:
        real = torch.arange(ids.shape[1], device=ids.device) < counts[:, None]
        logits = torch.zeros(ids.shape, dtype=_wide(hidden), device=hidden.device)
        for part, tokens, columns in _chunks(ids, real, chunk_rows):
            scores = _states(hidden[part]) @ _states(weight[tokens]).t()
            if bias is not None:
                scores += bias[tokens]
            logits[part] = scores.gather(1, columns)
        slope = torch.ones_like(logits) if differentiate and transform.softcap else None
        transform.apply_(logits, slope)
        ctx.save_for_backward(hidden, weight, ids, real, slope)
        ctx.has_bias, ctx.transform, ctx.chunk_rows = bias is not None, transform, chunk_rows
        return logits.masked_fill_(~real, PAD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, ids, real, slope = ctx.saved_tensors
        gradient = upstream.masked_fill(~real, 0.0)
        ctx.transform.chain_(gradient, slope)
        hidden_grad = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        # the gradients of each token that is anybody's candidate; a sum over chunks in float32
        used, place = ids[real].unique(return_inverse=True)
        places = torch.zeros_like(ids).masked_scatter_(real, place)
        rows_grad = torch.zeros(
            (len(used), hidden.shape[1]), dtype=gradient.dtype, device=ids.device
        )
        bias_grad = gradient.new_zeros(len(used))
        for part, local, columns in _chunks(places, real, ctx.chunk_rows):
            dense = gradient.new_zeros(len(columns), len(local))
            dense.scatter_add_(1, columns, gradient[part])  # pads add a zero to column 0
            if hidden_grad is not None:
                hidden_grad[part] = (dense @ _states(weight[used[local]])).to(hidden.dtype)
            # tokens of a chunk differ, so that these additions have one order on every device
            rows_grad[local] += dense.t() @ _states(hidden[part])
            bias_grad[local] += dense.sum(0)
        weight_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = torch.zeros_like(weight)
            weight_grad[used] = rows_grad.to(weight.dtype)
        whole_bias = None
        if ctx.has_bias and ctx.needs_input_grad[2]:
            whole_bias = weight.new_zeros(len(weight))
            whole_bias[used] = bias_grad.to(weight.dtype)
        return hidden_grad, weight_grad, whole_bias, None, None, None, None, None


def _chunks(
    ids: torch.Tensor, real: torch.Tensor, chunk_rows: int
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Rows of a chunk, the different ids of its candidates, and the column of each slot in them.

    Slots beyond a row's candidates get column 0.
    """
    for start in range(0, len(ids), chunk_rows):
        part = slice(start, start + chunk_rows)
        found, place = ids[part][real[part]].unique(return_inverse=True)
        yield part, found, torch.zeros_like(ids[part]).masked_scatter_(real[part], place)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _states(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_wide(tensor))
