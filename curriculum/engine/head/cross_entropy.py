"""Cross entropy of selected rows without full-vocabulary logits for more than a chunk.

One pass over a chunk forms its logits, its loss and its gradients in one buffer that every chunk
uses again: besides the gradients, memory is `chunk_rows x vocabulary`, whatever the rows. A fused
kernel of a device belongs behind `chunked_cross_entropy`, where nothing else would notice.

With row weight w, target y (mass S = sum(y); 1 for a label), p = softmax(x), Z = sum(exp(x)):

    loss = w * [ (1 - e) * sum(y * -log p) + e * S * mean(-log p) + z * S * log(Z)^2 ]
    d loss / d x = w * [ S * (1 + 2 z log Z) * p - (1 - e) * y - e * S / vocabulary ]

e is label smoothing (Szegedy et al., 2016, "Rethinking the Inception Architecture for Computer
Vision"), z the weight of the z-loss (Chowdhery et al., 2022, "PaLM"). Without them the gradient is
w * (p * sum(y) - y). A row whose targets or weight are zero has a gradient of exact zeros.
"""

from typing import Any

import torch

from curriculum.config import Loss
from curriculum.engine.head.transform import Transform


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tokens: torch.Tensor,
    masses: torch.Tensor,
    transform: Transform,
    loss: Loss,
    chunk_rows: int,
) -> torch.Tensor:
    """The sum of the rows' losses, a scalar in float32 (float64 for float64 states).

    hidden `[N, hidden]`, weight `[vocabulary, hidden]`; `tokens` `[N, K]` int64 are the tokens
    that a row's target is about and `masses` `[N, K]` their weight times probability. Other tokens
    have none. Entries of mass 0 may name any token: they pad rows with fewer.
    """
    return _ChunkedCrossEntropy.apply(
        hidden, weight, bias, tokens, masses, transform, loss, chunk_rows, torch.is_grad_enabled()
    )


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        tokens: torch.Tensor,
        masses: torch.Tensor,
        transform: Transform,
        loss: Loss,
        chunk_rows: int,
        differentiate: bool,
    ) -> torch.Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        room, vocabulary = min(len(hidden), chunk_rows), len(weight)
        rooms = hidden.new_empty(max(room * vocabulary, hidden.shape[1]), dtype=wide)
        # what matrix products write and read: the same memory, unless they compute in bfloat16
        matrix_rooms = rooms
        if hidden.dtype != wide:
            matrix_rooms = torch.empty_like(rooms, dtype=hidden.dtype)
        wanted = [differentiate and needed for needed in ctx.needs_input_grad[:3]]
        hidden_grad = torch.empty_like(hidden) if wanted[0] else None
        slope_rooms = torch.empty_like(rooms) if any(wanted) and transform.softcap else None
        weight_sum = _OuterSum(weight, len(hidden) <= room) if wanted[1] else None
        bias_grad = weight.new_zeros(vocabulary, dtype=wide) if wanted[2] else None
        total = hidden.new_zeros((), dtype=wide)
        for start in range(0, len(hidden), chunk_rows):
            part = slice(start, start + chunk_rows)
            states = hidden[part]
            matrix, scores, slope = (
                None if memory is None else memory[: len(states) * vocabulary].view(-1, vocabulary)
                for memory in (matrix_rooms, rooms, slope_rooms)
            )
            if bias is None:
                torch.mm(states, weight.t(), out=matrix)
            else:
                torch.addmm(bias, states, weight.t(), out=matrix)
            if matrix_rooms is not rooms:
                scores.copy_(matrix)
            transform.apply_(scores, slope)
            chosen = tokens[part], masses[part].to(wide)
            total += _loss_to_gradient_(scores, *chosen, loss, any(wanted))
            if not any(wanted):
                continue
            transform.chain_(scores, slope)
            if bias_grad is not None:
                bias_grad += scores.sum(0)
            if matrix_rooms is not rooms:
                matrix.copy_(scores)
            if hidden_grad is not None:
                torch.mm(matrix, weight, out=hidden_grad[part])
            if weight_sum is not None:
                weight_sum.add(matrix, states, scratch=rooms)
        ctx.save_for_backward(
            hidden_grad,
            None if weight_sum is None else weight_sum.total.to(weight.dtype),
            None if bias_grad is None else bias_grad.to(weight.dtype),
        )
        return total

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [
            None if grad is None else grad.mul_(upstream.to(grad.dtype))
            for grad in ctx.saved_tensors
        ]
        return (*gradients, None, None, None, None, None, None)


def _loss_to_gradient_(
    scores: torch.Tensor,
    tokens: torch.Tensor,
    masses: torch.Tensor,
    loss: Loss,
    differentiate: bool,
) -> torch.Tensor:
    """The loss of logits `[n, vocabulary]`, which become its gradient with respect to them.

    Without `differentiate` they are left as something else, of no use.
    """
    smoothing, z_loss = loss.label_smoothing, loss.z_loss
    mass = masses.sum(1, keepdim=True)
    chosen = scores.gather(1, tokens)
    mean = scores.mean(1, keepdim=True) if smoothing else None
    top = scores.amax(1, keepdim=True)
    scores.sub_(top).exp_()
    normalizer = scores.sum(1, keepdim=True)
    log_z = top + normalizer.log()

    total = (1 - smoothing) * (masses * (log_z - chosen)).sum()
    if mean is not None:
        total += smoothing * (mass * (log_z - mean)).sum()
    if z_loss:
        total += z_loss * (mass * log_z.square()).sum()
    if not differentiate:
        return total

    scores.mul_(mass * (1 + 2 * z_loss * log_z) / normalizer)
    if smoothing:
        scores.sub_(mass * (smoothing / scores.shape[1]))
    scores.scatter_add_(1, tokens, (smoothing - 1) * masses)
    return total


class _OuterSum:
    """The sum over chunks of gradient^T states `[vocabulary, hidden]`.

    In bfloat16 a sum that is rounded at every chunk would lose what one product keeps (products
    accumulate in float32 inside), so that chunks are then summed in float32. Each one's product is
    formed in blocks in the memory of its logits, which are done with.
    """

    def __init__(self, weight: torch.Tensor, one_chunk: bool) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.total = torch.zeros_like(weight, dtype=weight.dtype if one_chunk else wide)

    def add(self, gradient: torch.Tensor, states: torch.Tensor, scratch: torch.Tensor) -> None:
        if self.total.dtype == gradient.dtype:
            self.total.addmm_(gradient.t(), states)
            return
        width = states.shape[1]
        memory = scratch.view(gradient.dtype)
        block = len(memory) // width
        for total, columns in zip(self.total.split(block), gradient.split(block, 1), strict=True):
            product = memory[: total.numel()].view_as(total)
            total.add_(torch.mm(columns.t(), states, out=product))
