"""Retrieval and the options of token losses: one step is plain PyTorch's, at every layout."""

from typing import Any

import pytest
import retrieval_reference as reference
import tiny
import torch
import torch.nn.functional as F
from launch import launch
from retrieval_cases import TOKEN_LOSSES
from transformers import PreTrainedModel


@pytest.fixture(scope="module", params=["1-1", "2-1", "2-2"], ids=["alone", "shards", "replicas"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    processes, replicate = request.param.split("-")
    out = tmp_path_factory.mktemp("retrieval") / "found.json"
    return launch(int(processes), out, replicate, script="retrieval_cases.py")


def _assert_one_sgd_step(got: Any, lm: PreTrainedModel, loss: torch.Tensor) -> None:
    """The reference is in float64: what differs is float32 rounding, as in the other steps."""
    loss.backward()
    gradients = [p.grad for p in lm.parameters() if p.grad is not None]
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    torch.optim.SGD(lm.parameters(), lr=0.1).step()
    assert got["loss"] == pytest.approx(loss.item(), rel=2e-6)
    assert got["norm"] == pytest.approx(norm.item(), rel=1e-5)
    weights = dict(lm.named_parameters())
    assert got["weights"].keys() == weights.keys()
    for name, expected in weights.items():
        actual = torch.tensor(got["weights"][name]).double().reshape(expected.shape)
        torch.testing.assert_close(actual, expected.detach(), atol=1e-6, rtol=2e-5, msg=name)


@pytest.mark.parametrize("micro", [1, 4, 99])
@pytest.mark.parametrize("count", [6, 1])
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_retrieval_is_one_big_batch(found: Any, variant: str, count: int, micro: int) -> None:
    lm = tiny.reference_model(tiny.model_config(count == 6))
    loss = reference.loss(lm, reference.made(count), 0.2, **reference.VARIANTS[variant])
    got = found["retrieval"][f"{variant}-groups{count}-micro{micro}"]
    _assert_one_sgd_step(got, lm, loss)


@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_token_losses_with_options(found: Any, name: str, micro: int) -> None:
    lm = tiny.reference_model(tiny.model_config(True))
    options = TOKEN_LOSSES[name]
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for tokens, weights in tiny.examples("generative"):
        scores = lm(torch.tensor([tokens]), use_cache=False).logits[0]
        for position, w in enumerate(weights):
            if w:
                label = torch.tensor(tokens[position + 1])
                crossed = F.cross_entropy(
                    scores[position], label, label_smoothing=options.label_smoothing
                )
                drift = options.z_loss * scores[position].logsumexp(0) ** 2
                total = total + w * (crossed + drift)
                weight += w
    _assert_one_sgd_step(found["tokens"][f"{name}-micro{micro}"], lm, total / weight)


def test_rows_are_gathered_bit_for_bit(found: Any) -> None:
    got = found["gathering"]
    ranks = got["ranks"]
    counts = [*range(3, 3 + ranks - 1), 0]
    for name, width in (("float", [6]), ("int", []), ("empty", [4])):
        assert got[name]["equal"], name
        expected = [[0 if name == "empty" else count, *width] for count in counts]
        assert got[name]["shapes"] == expected


def test_the_trained_pass_draws_the_dropout_of_the_cached_pass(found: Any) -> None:
    for cached_is_trained, cached_is_third in found["dropout"]:
        assert cached_is_trained
        assert not cached_is_third
