"""From final hidden states to a loss, without full-vocabulary logits for more than a chunk.

Only rows that carry loss get here. `cross_entropy` forms each chunk's logits, its loss and its
gradients in one pass, so that one chunk of logits exists at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PretrainedConfig

from curriculum.engine.batch import Batch

Head = Literal["rows", "embed", "logits"]
Sums = tuple[torch.Tensor, torch.Tensor]
Reduce = Callable[[Any], Sums]

# where model families keep the transforms of their logits (transformers' own config names)
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
_DIVISORS = ("logits_scaling",)


@dataclass(frozen=True)
class Transform:
    """`logits = softcap * tanh(scale * (h W^T + b) / softcap)`."""

    scale: float = 1.0
    softcap: float | None = None


def transform_of(config: PretrainedConfig) -> Transform:
    """The output transform that a model's config names; checked against the model at start."""
    scale, softcap = 1.0, None
    for name in _MULTIPLIERS:
        scale *= float(getattr(config, name, None) or 1.0)
    for name in _DIVISORS:
        scale /= float(getattr(config, name, None) or 1.0)
    for name in _SOFTCAPS:
        softcap = getattr(config, name, None) or softcap
    return Transform(scale, None if softcap is None else float(softcap))


@dataclass(frozen=True)
class Rows:
    """What the head `rows` gives: hidden states `[N, hidden]` of the positions that carry loss."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    transform: Transform
    chunk_rows: int

    def cross_entropy(self, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sum over rows of `weights[i] * -log softmax(logits[i])[labels[i]]`, a scalar.

        labels `[N]` int64, weights `[N]` float32. Zero rows give 0 with a gradient of zeros, so
        that a rank without a trained row still takes part in every collective.
        """
        return _ChunkedCrossEntropy.apply(
            self.hidden,
            self.weight,
            self.bias,
            labels,
            weights,
            self.transform,
            self.chunk_rows,
            torch.is_grad_enabled(),
        )


def token_cross_entropy(batch: Batch) -> Reduce:
    """A micro-batch's sum of weighted next-token losses, and the sum of their weights."""

    def reduce(rows: Rows) -> Sums:
        return rows.cross_entropy(batch.labels, batch.weights), batch.weights.sum()

    return reduce


def logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, transform: Transform
) -> torch.Tensor:
    """Float32 logits `[N, vocabulary]` of rows `[N, hidden]`."""
    values = torch.nn.functional.linear(hidden, weight, bias).float()
    if transform.scale != 1.0:
        values = values * transform.scale
    if transform.softcap is not None:
        values = transform.softcap * torch.tanh(values / transform.softcap)
    return values


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        weights: torch.Tensor,
        transform: Transform,
        chunk_rows: int,
        differentiate: bool,
    ) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        if differentiate:
            hidden_grad = torch.zeros_like(hidden)
            weight_grad = torch.zeros_like(weight)
            bias_grad = None if bias is None else torch.zeros_like(bias)
        for start in range(0, hidden.shape[0], chunk_rows):
            part = slice(start, start + chunk_rows)
            scores = logits(hidden[part], weight, bias, transform)
            target = labels[part, None]
            normalizer = scores.logsumexp(-1, keepdim=True)
            nll = normalizer - scores.gather(1, target)
            total += (nll[:, 0] * weights[part]).sum()
            if not differentiate:
                continue
            slope = _transform_slope(scores, transform)
            scores.sub_(normalizer).exp_()  # now the probabilities
            scores.scatter_add_(1, target, torch.full_like(nll, -1.0))
            scores.mul_(weights[part, None])
            if slope is not None:
                scores.mul_(slope)
            gradient = scores.to(weight.dtype)
            torch.mm(gradient, weight, out=hidden_grad[part])
            weight_grad.addmm_(gradient.t(), hidden[part])
            if bias_grad is not None:
                bias_grad += gradient.sum(0)
        if differentiate:
            ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [
            None if grad is None else grad.mul_(upstream.to(grad.dtype))
            for grad in ctx.saved_tensors
        ]
        return (*gradients, None, None, None, None, None)


def _transform_slope(scores: torch.Tensor, transform: Transform) -> torch.Tensor | float | None:
    """d logits / d (h W^T + b), from the transformed logits."""
    if transform.softcap is None:
        return None if transform.scale == 1.0 else transform.scale
    return (1 - (scores / transform.softcap) ** 2) * transform.scale


def pooled(hidden: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Text embeddings: the final-norm state of each text's last token, L2-normalised in float32.

    hidden `[T, hidden]`, last `[S]`; returns `[S, hidden]`. A zero vector stays zero with a finite
    gradient.
    """
    states = hidden.index_select(0, last).float()
    return states * torch.rsqrt(states.square().sum(-1, keepdim=True) + 1e-12)
