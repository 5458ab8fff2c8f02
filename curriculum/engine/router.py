"""Load-balancing losses of mixture-of-experts models, per window and token-weighted.

For one window with T tokens, L sparse layers, E experts and k experts a token (Fedus et al., 2021,
"Switch Transformers", equations 4 to 6, in the form of `transformers`, which pools the layers):

    f[e] = assignments to e / (L T)     p[e] = sum of router probabilities of e / (L T)
    balance = E * sum_e f[e] * p[e]     (k where all experts are used alike)

A window's share of the step's router loss is its share of the step's loss weights: trained tokens
as they are weighed, or queries. So the step's loss is its objective's plus `router_aux_loss_coef`
times the weighted mean of the windows' `balance`, at any micro-batch, accumulation and world size.
A window's tokens are all tokens in it, whether they carry loss or not; how windows are packed
matters, therefore.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from curriculum.engine.batch import Batch
from curriculum.errors import RunError, UserError


@dataclass(frozen=True)
class Router:
    """`coefficient` of the router loss in the step's loss; `top_k` experts a token."""

    coefficient: float
    top_k: int


def router_of(config: PretrainedConfig) -> Router | None:
    """What the model's config says about router losses; None without any.

    As in `transformers`, there are some where `output_router_logits` is set.
    """
    coefficient = getattr(config, "router_aux_loss_coef", None)
    if not getattr(config, "output_router_logits", False) or not coefficient:
        return None
    top_k = getattr(config, "num_experts_per_tok", None)
    if top_k is None:
        raise UserError(
            f"model.router_loss: {config.model_type} does not say num_experts_per_tok, so that its "
            "router losses are not known; give model.router_loss=false"
        )
    return Router(float(coefficient), int(top_k))


def set_router_loss(config: PretrainedConfig, wanted: bool | None) -> None:
    """Put the choice into the model's config; None leaves what the model says itself."""
    if wanted is None:
        return
    if wanted and not getattr(config, "router_aux_loss_coef", None):
        raise UserError(
            f"model.router_loss=true: {config.model_type} has no router losses "
            "(router_aux_loss_coef); give model.router_loss=null"
        )
    if hasattr(config, "output_router_logits"):
        config.output_router_logits = wanted


def router_loss(
    router: Router, router_logits: Sequence[torch.Tensor], batch: Batch, weight: torch.Tensor
) -> torch.Tensor:
    """What a micro-batch adds to the sum of weighted losses, a scalar.

    router_logits: `[T, experts]` of each sparse layer; `weight`: the micro-batch's sum of weights.
    Raises `RunError` without any: not every release of `transformers` records them for a family
    whose config has router losses.
    """
    if not router_logits:
        raise RunError(
            "model.router_loss: this release of transformers records no router logits of this "
            "model, so that its router losses would be left out; give model.router_loss=false"
        )
    if not batch.window_lens:
        return weight.new_zeros(())
    lengths = torch.tensor(batch.window_lens, device=router_logits[0].device)
    member = _members(lengths)
    shares = _shares(batch, member)
    balance = load_balance(router_logits, member, router.top_k)
    total = shares.sum()
    mean = (shares * balance).sum() / torch.where(total > 0, total, torch.ones_like(total))
    return router.coefficient * weight.detach() * mean


def load_balance(
    router_logits: Sequence[torch.Tensor], member: torch.Tensor, top_k: int
) -> torch.Tensor:
    """`balance` of each window, `[W]`; `member` `[W, T]` is 1 where a window holds a token.

    Sums over windows are matrix products, because scattered additions have no fixed order on a GPU.
    """
    assigned = probability = None
    for scores in router_logits:
        wide = torch.promote_types(scores.dtype, torch.float32)
        probabilities = scores.to(wide).softmax(-1)
        chosen = probabilities.detach().topk(top_k, -1).indices
        hits = torch.zeros_like(probabilities).scatter_(1, chosen, 1.0)
        inside = member.to(wide)
        assigned = inside @ hits + (0 if assigned is None else assigned)
        probability = inside @ probabilities + (0 if probability is None else probability)
    assert assigned is not None and probability is not None
    rows = member.sum(1, keepdim=True).to(assigned.dtype) * len(router_logits)
    return assigned.shape[1] * (assigned / rows * (probability / rows)).sum(1)


def _members(lengths: torch.Tensor) -> torch.Tensor:
    """`[W, T]`, 1.0 where a token lies in a window; windows lie end to end."""
    ends = lengths.cumsum(0)
    position = torch.arange(int(lengths.sum()), device=lengths.device)
    return ((position < ends[:, None]) & (position >= (ends - lengths)[:, None])).float()


def _shares(batch: Batch, member: torch.Tensor) -> torch.Tensor:
    """Loss weight of each window, `[W]`: of its trained tokens, or 1 for a group of texts."""
    if batch.groups:
        return member.new_ones(len(member))
    return member[:, batch.rows] @ batch.weights


@contextmanager
def without_router_outputs(config: PretrainedConfig) -> Iterator[None]:
    """For generation: models would form a router loss of a mask that does not fit one token."""
    wanted = getattr(config, "output_router_logits", None)
    if not wanted:
        yield
        return
    config.output_router_logits = False
    try:
        yield
    finally:
        config.output_router_logits = wanted
