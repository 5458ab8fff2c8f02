"""Losses of a choice phase: `plan.phases.X.loss: {import_path: curriculum.losses.brier}`.

A loss is any function that takes the keywords below and the phase's `loss.kwargs`, once for each
micro-batch, and returns `(loss_sum, weight_sum)`, two scalar tensors. The step's loss, and with it
the gradient, is the sum of all `loss_sum` over the sum of all `weight_sum`, in float64, whatever
the micro-batches and ranks. A micro-batch without rows is not handed over.

    choice_logits  [R, K] float32: the model's logits of each row's candidates, padded on the right
                   with the lowest float32: a softmax over the row gives those slots exactly 0, and
                   whatever gradient reaches them is dropped
    choice_counts  [R] int64: candidates of each row, from the left
    target_probs   [R, K] float32: what the softmax should be; 0 in padded slots
    weights        [R] float32
    mix_weights    [R, M] float32: shares of the sub-mixtures in each row, M may be 0
    mix_components list of the M names

With q the softmax of a row's logits and p its target, a row's loss is

    cross_entropy  -sum(p log q)
    kl             sum(p log(p / q)), that is the cross entropy less the target's own entropy: the
                   same gradient, and 0 where q = p
    brier          sum((q - p)^2) (Brier, 1950, "Verification of forecasts expressed in terms of
                   probability"): bounded by 2, so a confident mistake weighs less
    mix            a weighted sum of these, alike for all rows or by sub-mixture

times the row's weight. Zero probabilities and zero weights are exact: 0 log 0 is 0, and a row whose
weight or whole target is 0 has a gradient of zeros. All is computed in float64.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

Sums = tuple[torch.Tensor, torch.Tensor]


def cross_entropy(
    *,
    choice_logits: torch.Tensor,
    choice_counts: torch.Tensor,
    target_probs: torch.Tensor,
    weights: torch.Tensor,
    mix_weights: torch.Tensor,
    mix_components: Sequence[str],
) -> Sums:
    """Cross entropy to the target distribution. The default."""
    return _weighted(_cross_entropy(*_rows(choice_logits, choice_counts, target_probs)), weights)


def kl(
    *,
    choice_logits: torch.Tensor,
    choice_counts: torch.Tensor,
    target_probs: torch.Tensor,
    weights: torch.Tensor,
    mix_weights: torch.Tensor,
    mix_components: Sequence[str],
) -> Sums:
    """Divergence of the model's distribution from the target."""
    return _weighted(_kl(*_rows(choice_logits, choice_counts, target_probs)), weights)


def brier(
    *,
    choice_logits: torch.Tensor,
    choice_counts: torch.Tensor,
    target_probs: torch.Tensor,
    weights: torch.Tensor,
    mix_weights: torch.Tensor,
    mix_components: Sequence[str],
) -> Sums:
    """Squared distance of the model's distribution from the target."""
    return _weighted(_brier(*_rows(choice_logits, choice_counts, target_probs)), weights)


def mix(
    *,
    choice_logits: torch.Tensor,
    choice_counts: torch.Tensor,
    target_probs: torch.Tensor,
    weights: torch.Tensor,
    mix_weights: torch.Tensor,
    mix_components: Sequence[str],
    losses: Mapping[str, float] | None = None,
    by_component: Mapping[str, Mapping[str, float]] | None = None,
) -> Sums:
    """A weighted sum of losses by name: `losses: {cross_entropy: 0.7, brier: 0.3}`.

    With `by_component: {exams: {cross_entropy: 1.0}, polls: {kl: 0.5}}` instead, each sub-mixture
    of the data has its own sum, of which a row takes as much as its `mix_weights` say. Raises
    `ValueError` for a loss that is not here, and for a sub-mixture without an entry.
    """
    if (losses is None) == (by_component is None):
        raise ValueError("needs exactly one of the kwargs losses and by_component")
    if losses is not None:
        chosen, shares = [losses], torch.ones_like(weights)[:, None]
    else:
        assert by_component is not None
        if not mix_components:
            raise ValueError("by_component needs data with a mixture, and this has none")
        if missing := [name for name in mix_components if name not in by_component]:
            raise ValueError(f"by_component has no entry for {', '.join(missing)}")
        chosen, shares = [by_component[name] for name in mix_components], mix_weights
    names = list(dict.fromkeys(name for part in chosen for name in part))
    if unknown := [name for name in names if name not in _LOSSES]:
        raise ValueError(f"{', '.join(unknown)}: no such loss; known: {', '.join(_LOSSES)}")
    rows = _rows(choice_logits, choice_counts, target_probs)
    total = (rows[0] * 0.0).sum(-1)
    for name in names:
        factors = shares.new_tensor([part.get(name, 0.0) for part in chosen], dtype=torch.float64)
        total = total + (shares.double() @ factors) * _LOSSES[name](*rows)
    return _weighted(total, weights)


def _rows(
    choice_logits: torch.Tensor, choice_counts: torch.Tensor, target_probs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """log q and p, both `[R, K]` float64; in padded slots very low, and 0."""
    slots = torch.arange(choice_logits.shape[1], device=choice_logits.device)
    padded = slots >= choice_counts[:, None]
    lowest = torch.finfo(torch.float64).min  # not minus infinity: 0 times that is NaN
    scores = choice_logits.double().masked_fill(padded, lowest)
    return scores.log_softmax(-1), target_probs.double().masked_fill(padded, 0.0)


def _cross_entropy(log_q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return -(p * log_q).sum(-1)


def _kl(log_q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return torch.xlogy(p, p).sum(-1) - (p * log_q).sum(-1)


def _brier(log_q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (log_q.exp() - p).square().sum(-1) * (p.sum(-1) > 0)


def _weighted(losses: torch.Tensor, weights: torch.Tensor) -> Sums:
    return (weights.double() * losses).sum(), weights.double().sum()


_LOSSES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": _cross_entropy,
    "kl": _kl,
    "brier": _brier,
}
