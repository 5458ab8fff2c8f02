"""Losses over choices: hand-made values, ragged rows, zeros, and what pads must not do."""

import math
from typing import Any

import pytest
import torch

from curriculum import losses

COUNTS = [2, 4, 5, 3]
TARGETS = [[1.0, 0.0], [0.25] * 4, [0.0, 0.5, 0.0, 0.5, 0.0], [0.2, 0.3, 0.5]]
WEIGHTS = [1.0, 0.5, 2.0, 0.0]
NAMES = ("cross_entropy", "kl", "brier")


def given(pad: float = torch.finfo(torch.float32).min, **changes: Any) -> dict[str, Any]:
    """Ragged rows: one-hot, uniform, with zeros, and one of weight 0."""
    draw = torch.Generator().manual_seed(3)
    logits = torch.full((4, 5), pad)
    targets = torch.zeros(4, 5)
    for row, target in enumerate(TARGETS):
        logits[row, : len(target)] = torch.randn(len(target), generator=draw) * 4
        targets[row, : len(target)] = torch.tensor(target)
    values = {
        "choice_logits": logits.requires_grad_(),
        "choice_counts": torch.tensor(COUNTS),
        "target_probs": targets,
        "weights": torch.tensor(WEIGHTS),
        "mix_weights": torch.zeros(4, 0),
        "mix_components": [],
    }
    return values | changes


def row_loss(name: str, logits: list[float], target: list[float]) -> float:
    """By the formula, one number at a time."""
    z = sum(math.exp(x) for x in logits)
    q = [math.exp(x) / z for x in logits]
    if name == "brier":
        return sum((a - p) ** 2 for a, p in zip(q, target, strict=True))
    pairs = [(p, a) for p, a in zip(target, q, strict=True) if p > 0]
    if name == "kl":
        return sum(p * math.log(p / a) for p, a in pairs)
    return -sum(p * math.log(a) for p, a in pairs)


def expected(name: str, values: dict[str, Any]) -> list[float]:
    rows = values["choice_logits"].tolist()
    return [
        row_loss(name, row[:count], target)
        for row, count, target in zip(rows, COUNTS, TARGETS, strict=True)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_ragged_rows_with_zeros(name: str) -> None:
    values = given()
    loss, weight = getattr(losses, name)(**values)
    by_hand = sum(w * one for w, one in zip(WEIGHTS, expected(name, values), strict=True))
    assert loss.dtype == weight.dtype == torch.float64
    assert loss.item() == pytest.approx(by_hand, rel=1e-12)
    assert weight.item() == sum(WEIGHTS)
    (gradient,) = torch.autograd.grad(loss, values["choice_logits"])
    assert torch.isfinite(gradient).all()
    for row, count in enumerate(COUNTS):
        assert not gradient[row, count:].any()
        assert bool(gradient[row].any()) is (WEIGHTS[row] > 0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    values = given(pad=0.0)
    values["target_probs"] = values["target_probs"].double()

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return getattr(losses, name)(**{**values, "choice_logits": logits})[0]

    assert torch.autograd.gradcheck(
        loss, values["choice_logits"].detach().double().requires_grad_()
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_pads_a_row_never_matters(name: str) -> None:
    clean, loss = given(), getattr(losses, name)
    for pad in (0.0, 1e30, float("inf"), float("nan"), float("-inf")):
        dirty = given(pad=pad)
        dirty["target_probs"][0, 2:] = float("nan")
        assert loss(**dirty)[0].item() == loss(**clean)[0].item()
        (gradient,) = torch.autograd.grad(loss(**dirty)[0], dirty["choice_logits"])
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", NAMES)
def test_logits_far_apart_stay_finite(name: str) -> None:
    logits = torch.tensor([[3e38, -3e38], [0.0, -1e4]], requires_grad=True)
    targets = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    counts, weights = torch.tensor([2, 2]), torch.ones(2)
    values = given(
        choice_logits=logits, target_probs=targets, choice_counts=counts, weights=weights
    )
    loss, _ = getattr(losses, name)(**values)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert math.isfinite(loss.item()) and torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_any_target_pulls_nowhere(name: str) -> None:
    values = given()
    values["target_probs"] = torch.zeros(4, 5)
    loss, _ = getattr(losses, name)(**values)
    (gradient,) = torch.autograd.grad(loss, values["choice_logits"])
    assert loss.item() == 0 and not gradient.any()


def test_kl_is_zero_where_the_model_equals_the_target() -> None:
    targets = torch.tensor([[0.125, 0.875, 0.0]])
    values = given(
        choice_logits=targets.clamp_min(1e-30).log(),
        choice_counts=torch.tensor([3]),
        target_probs=targets,
        weights=torch.ones(1),
    )
    assert losses.kl(**values)[0].item() == pytest.approx(0, abs=1e-7)
    assert losses.brier(**values)[0].item() == pytest.approx(0, abs=1e-12)


def test_mix_alike_for_all_rows() -> None:
    values = given()
    loss, weight = losses.mix(**values, losses={"cross_entropy": 0.75, "brier": 2})
    parts = zip(WEIGHTS, expected("cross_entropy", values), expected("brier", values), strict=True)
    assert loss.item() == pytest.approx(sum(w * (0.75 * a + 2 * b) for w, a, b in parts))
    assert weight.item() == sum(WEIGHTS)
    assert torch.isfinite(torch.autograd.grad(loss, values["choice_logits"])[0]).all()


def test_mix_by_component() -> None:
    shares = [[1.0, 0.0], [0.25, 0.75], [0.0, 1.0], [0.5, 0.5]]
    values = given(mix_weights=torch.tensor(shares), mix_components=["exams", "polls"])
    kwargs = {"exams": {"cross_entropy": 1.0}, "polls": {"kl": 0.5, "brier": 1.0}, "unused": {}}
    loss, _ = losses.mix(**values, by_component=kwargs)
    by_hand = 0.0
    rows = zip(*(expected(name, values) for name in NAMES), strict=True)
    for w, (exams, polls), (crossed, kl, brier) in zip(WEIGHTS, shares, rows, strict=True):
        by_hand += w * (exams * crossed + polls * (0.5 * kl + brier))
    assert loss.item() == pytest.approx(by_hand, rel=1e-12)


def test_mix_says_what_it_does_not_know() -> None:
    values = given(mix_weights=torch.ones(4, 1), mix_components=["polls"])
    with pytest.raises(ValueError, match="hinge: no such loss; known: cross_entropy, kl, brier"):
        losses.mix(**values, losses={"hinge": 1.0})
    with pytest.raises(ValueError, match="by_component has no entry for polls"):
        losses.mix(**values, by_component={"exams": {"kl": 1.0}})
    with pytest.raises(ValueError, match="needs data with a mixture"):
        losses.mix(**given(), by_component={"polls": {"kl": 1.0}})
    for wrong in ({}, {"losses": {"kl": 1}, "by_component": {}}):
        with pytest.raises(ValueError, match="exactly one of the kwargs"):
            losses.mix(**values, **wrong)
