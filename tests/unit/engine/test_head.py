"""The chunked loss against plain PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F

from curriculum.engine.head import Rows, Transform, pooled, unit


def _case(rows: int, bias: bool) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 8, generator=generator, requires_grad=True)
    weight = torch.randn(13, 8, generator=generator, requires_grad=True)
    offset = torch.randn(13, generator=generator, requires_grad=bias)
    labels = torch.randint(13, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator)
    weights[::3] = 0.0
    return hidden, weight, offset, labels, weights


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "transform", [Transform(), Transform(scale=0.25), Transform(softcap=3.0), Transform(2.0, 5.0)]
)
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_loss_and_gradients(chunk: int, transform: Transform, bias: bool) -> None:
    hidden, weight, offset, labels, weights = _case(10, bias)
    rows = Rows(hidden, weight, offset if bias else None, transform, chunk)
    loss = rows.cross_entropy(labels, weights)
    (loss * 1.5).backward()
    got = [t.grad for t in (hidden, weight, offset)[: 2 + bias]]

    double = [t.detach().double().requires_grad_() for t in (hidden, weight, offset)]
    scores = F.linear(double[0], double[1], double[2] if bias else None) * transform.scale
    if transform.softcap is not None:
        scores = transform.softcap * torch.tanh(scores / transform.softcap)
    expected = (F.cross_entropy(scores, labels, reduction="none") * weights.double()).sum()
    (expected * 1.5).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for actual, reference in zip(got, double, strict=False):
        torch.testing.assert_close(actual.double(), reference.grad, atol=2e-6, rtol=1e-5)


def test_a_row_of_weight_zero_gets_no_gradient() -> None:
    hidden, weight, _, labels, weights = _case(6, False)
    Rows(hidden, weight, None, Transform(), 4).cross_entropy(labels, weights).backward()
    assert hidden.grad is not None
    assert torch.equal(hidden.grad[::3], torch.zeros(2, 8))


def test_no_rows_give_zero_and_a_gradient_of_zeros() -> None:
    hidden, weight, _, _, _ = _case(0, False)
    loss = Rows(hidden, weight, None, Transform(), 4).cross_entropy(
        torch.zeros(0, dtype=torch.long), torch.zeros(0)
    )
    loss.backward()
    assert loss.item() == 0.0
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.zeros(13, 8))


def test_pooling_takes_the_last_token_and_survives_a_zero_vector() -> None:
    hidden = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]], requires_grad=True)
    embeddings = unit(pooled(hidden, torch.tensor([0, 1, 2]), [1, 1, 1], "last"))
    torch.testing.assert_close(embeddings[:2], torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert embeddings[2].tolist() == [0.0, 0.0]
    embeddings.sum().backward()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()
