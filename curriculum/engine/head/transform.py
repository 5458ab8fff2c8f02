"""From final hidden states to logits, as model families transform them."""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

# where model families keep the transforms of their logits (transformers' own config names)
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
_DIVISORS = ("logits_scaling",)


@dataclass(frozen=True)
class Transform:
    """`logits = softcap * tanh(scale * (h W^T + b) / softcap)`."""

    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, values: torch.Tensor, slope: torch.Tensor | None) -> None:
        """Turn `h W^T + b` into logits, in place.

        `slope`, of the same shape, is overwritten with the soft-cap's derivative; None where no
        gradient will be asked for or there is no soft-cap.
        """
        if self.scale != 1.0:
            values.mul_(self.scale)
        if self.softcap is None:
            return
        values.div_(self.softcap).tanh_()
        if slope is not None:
            torch.mul(values, values, out=slope).neg_().add_(1.0)
        values.mul_(self.softcap)

    def chain_(self, gradient: torch.Tensor, slope: torch.Tensor | None) -> None:
        """Turn a gradient for the logits into one for `h W^T + b`, in place."""
        if slope is not None:
            gradient.mul_(slope)
        if self.scale != 1.0:
            gradient.mul_(self.scale)


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


def logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, transform: Transform
) -> torch.Tensor:
    """Float32 logits `[N, vocabulary]` of rows `[N, hidden]`, differentiable."""
    values = torch.nn.functional.linear(hidden, weight, bias).float()
    if transform.scale != 1.0:
        values = values * transform.scale
    if transform.softcap is not None:
        values = transform.softcap * torch.tanh(values / transform.softcap)
    return values
