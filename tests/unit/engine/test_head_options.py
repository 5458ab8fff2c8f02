"""Every option of the chunked loss against float64 autograd over full logits."""

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from curriculum.config import Loss
from curriculum.engine.head import Rows, Transform

ROWS, HIDDEN, VOCABULARY = 11, 8, 13
TRANSFORMS = [Transform(), Transform(scale=0.25), Transform(softcap=3.0), Transform(2.0, 5.0)]
LOSSES = [Loss(), Loss(label_smoothing=0.2), Loss(z_loss=0.05), Loss(0.1, 0.02)]


def inputs(rows: int = ROWS, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return tuple(t.to(dtype).requires_grad_() for t in tensors)


def soft_targets(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ragged distributions over up to 4 tokens, padded with token 0; among them one-hot rows,
    rows with an exact zero, rows without any target, rows of weight 0, and sums other than 1."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:4] for _ in range(rows)])
    probabilities = torch.rand(rows, 4, generator=generator, dtype=torch.float64)
    probabilities[::2] /= probabilities[::2].sum(1, keepdim=True)
    weights = torch.rand(rows, generator=generator, dtype=torch.float64)
    for row in range(rows):
        if row % 5 == 1:
            probabilities[row, 2:], tokens[row, 2:] = 0.0, 0
        if row % 5 == 2:
            probabilities[row] = torch.tensor([0.0, 1.0, 0.0, 0.0])
        if row % 5 == 3:
            probabilities[row] = 0.0
    weights[4::5] = 0.0
    return tokens, probabilities, weights


def dense(tokens: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(tokens), VOCABULARY, dtype=torch.float64).scatter_add(
        1, tokens, probabilities
    )


def reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    weights: torch.Tensor,
    transform: Transform,
    loss: Loss,
) -> torch.Tensor:
    """From dense targets, by the definitions: each target's own mass is spread and regularised."""
    scores = F.linear(hidden, weight, bias) * transform.scale
    if transform.softcap is not None:
        scores = transform.softcap * torch.tanh(scores / transform.softcap)
    mass = targets.sum(1, keepdim=True)
    smooth = (1 - loss.label_smoothing) * targets + loss.label_smoothing * mass / VOCABULARY
    crossed = -(smooth * F.log_softmax(scores, -1)).sum(1)
    drift = loss.z_loss * mass[:, 0] * scores.exp().sum(1).log() ** 2
    return ((crossed + drift) * weights).sum()


def gradients(loss: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss * 1.5, tensors))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("chunk", [1, 3, ROWS])
def test_soft_targets(chunk: int, transform: Transform, loss: Loss, bias: bool) -> None:
    hidden, weight, offset = inputs()
    tokens, probabilities, weights = soft_targets()
    given = offset if bias else None
    tensors = [hidden, weight, offset][: 2 + bias]
    got = Rows(hidden, weight, given, transform, chunk).soft_cross_entropy(
        tokens, probabilities, weights, loss
    )
    expected = reference(
        hidden, weight, given, dense(tokens, probabilities), weights, transform, loss
    )
    # all in float64: what is left is rounding
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    for actual, wanted in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("chunk", [1, 3, ROWS])
def test_labels(chunk: int, transform: Transform, loss: Loss) -> None:
    hidden, weight, offset = inputs()
    labels = torch.arange(ROWS) % VOCABULARY
    weights = torch.linspace(0.0, 2.0, ROWS, dtype=torch.float64)
    rows = Rows(hidden, weight, offset, transform, chunk)
    got = rows.cross_entropy(labels, weights, loss)
    targets = F.one_hot(labels, VOCABULARY).double()
    expected = reference(hidden, weight, offset, targets, weights, transform, loss)
    tensors = [hidden, weight, offset]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    for actual, wanted in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_label_smoothing_is_that_of_torch(smoothing: float) -> None:
    hidden, weight, _ = inputs()
    labels = torch.arange(ROWS)
    ones = torch.ones(ROWS, dtype=torch.float64)
    got = Rows(hidden, weight, None, Transform(), 4).cross_entropy(labels, ones, Loss(smoothing))
    expected = F.cross_entropy(
        F.linear(hidden, weight), labels, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_gradients_are_slopes(transform: Transform, loss: Loss) -> None:
    tokens, probabilities, weights = soft_targets()

    def value(*tensors: torch.Tensor) -> torch.Tensor:
        return Rows(*tensors, transform, 4).soft_cross_entropy(tokens, probabilities, weights, loss)

    point = inputs()
    slopes = torch.autograd.grad(value(*point), point)
    generator = torch.Generator().manual_seed(2)
    step = 1e-5  # error of the central difference: step^2 and 1e-16 / step
    for _ in range(3):
        way = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in point]
        with torch.no_grad():
            ahead, behind = (
                value(*(t + sign * step * w for t, w in zip(point, way, strict=True)))
                for sign in (1, -1)
            )
        along = sum((slope * w).sum() for slope, w in zip(slopes, way, strict=True))
        assert ((ahead - behind) / (2 * step)).item() == pytest.approx(along.item(), rel=1e-6)


def test_a_second_backward_is_refused() -> None:
    """Gradients are scaled in place: a second pass over the same graph must not be silent."""
    hidden, weight, offset = inputs()
    loss = Rows(hidden, weight, offset, Transform(), 4).cross_entropy(
        torch.arange(ROWS), torch.ones(ROWS)
    )
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_rows_without_weight_or_target_give_exact_zeros(
    transform: Transform, loss: Loss, dtype: torch.dtype
) -> None:
    hidden, weight, offset = inputs(dtype=dtype)
    tokens, probabilities, weights = soft_targets()
    rows = Rows(hidden, weight, offset, transform, 3)
    rows.soft_cross_entropy(tokens, probabilities.float(), weights.float(), loss).backward()
    empty = (weights == 0) | (probabilities.sum(1) == 0)
    assert 0 < empty.sum() < ROWS
    assert hidden.grad is not None
    assert hidden.grad[empty].count_nonzero() == 0
    assert all(row.count_nonzero() for row in hidden.grad[~empty])


def test_nothing_but_empty_rows_gives_a_zero_loss_and_zero_gradients() -> None:
    hidden, weight, offset = inputs(dtype=torch.float32)
    tokens, probabilities, _ = soft_targets()
    loss = Rows(hidden, weight, offset, Transform(), 3).soft_cross_entropy(
        tokens, probabilities.float(), torch.zeros(ROWS), Loss(0.1, 0.1)
    )
    loss.backward()
    assert loss.item() == 0.0
    for tensor in (hidden, weight, offset):
        assert tensor.grad is not None
        assert tensor.grad.count_nonzero() == 0


def test_extreme_logits_stay_finite() -> None:
    """A softmax that underflows everywhere but at one token, with a target elsewhere."""
    hidden = torch.full((2, HIDDEN), 100.0, requires_grad=True)
    weight = torch.zeros(VOCABULARY, HIDDEN)
    weight[0], weight[1] = 10.0, -10.0
    weight.requires_grad_()
    loss = Rows(hidden, weight, None, Transform(), 1).cross_entropy(
        torch.tensor([1, 0]), torch.ones(2)
    )
    loss.backward()
    assert loss.item() == pytest.approx(2 * HIDDEN * 1000.0)
    assert hidden.grad is not None and torch.isfinite(hidden.grad).all()
    assert weight.grad is not None and torch.isfinite(weight.grad).all()


def test_only_wanted_gradients_are_formed() -> None:
    hidden, weight, _ = inputs(dtype=torch.float32)
    frozen = weight.detach()
    labels, ones = torch.arange(ROWS), torch.ones(ROWS)
    both = Rows(hidden, weight, None, Transform(), 4).cross_entropy(labels, ones)
    (expected,) = torch.autograd.grad(both, hidden)
    with LiveBytes() as frozen_memory:
        loss = Rows(hidden, frozen, None, Transform(), 4).cross_entropy(labels, ones)
        loss.backward()
    assert torch.equal(hidden.grad, expected)
    assert (VOCABULARY, HIDDEN) not in frozen_memory.shapes
    with LiveBytes() as evaluation, torch.no_grad():
        value = Rows(hidden, weight, None, Transform(), 4).cross_entropy(labels, ones)
    assert value.item() == loss.item()
    assert not evaluation.shapes & {(VOCABULARY, HIDDEN), (ROWS, HIDDEN)}


@pytest.mark.parametrize("chunk", [4, 16, 64, 256])
def test_bfloat16_chunks_lose_little_against_one_product(chunk: int) -> None:
    """The weight gradient's error in bfloat16, against float64 of the same bfloat16 inputs.

    One product rounds its inputs and its result (2^-9 relative each). Chunks round each product
    and once more at the end: at most the square root of 2 more, however many they are.
    """
    generator = torch.Generator().manual_seed(0)
    rows, hidden_size, vocabulary = 512, 32, 256
    hidden = torch.randn(rows, hidden_size, generator=generator).bfloat16()
    weight = (torch.randn(vocabulary, hidden_size, generator=generator) * 0.1).bfloat16()
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator)
    exact = weight.double().requires_grad_()
    losses = F.cross_entropy(F.linear(hidden.double(), exact), labels, reduction="none")
    (losses * weights.double()).sum().backward()

    def error(chunk_rows: int) -> float:
        tried = weight.clone().requires_grad_()
        rounded = Rows(hidden, tried, None, Transform(), chunk_rows).cross_entropy(labels, weights)
        rounded.backward()
        assert tried.grad is not None and tried.grad.dtype == torch.bfloat16
        return float((tried.grad.double() - exact.grad).norm() / exact.grad.norm())

    assert error(rows) < 2**-8
    assert error(chunk) < 1.5 * error(rows)


def test_the_memory_watch_sees_what_lives_at_once() -> None:
    with LiveBytes() as memory:
        for _ in range(5):
            kept = torch.zeros(1000)
            kept = torch.zeros(10).add(1.0)
            del kept
        torch.zeros(500).add_(1.0)
    assert 4000 <= memory.peak <= 4100


@pytest.mark.parametrize("transform", [Transform(), Transform(2.0, 5.0)])
@pytest.mark.parametrize("loss", LOSSES)
def test_memory_does_not_grow_with_vocabulary_times_rows(loss: Loss, transform: Transform) -> None:
    hidden_size, vocabulary, chunk = 8, 1000, 16

    def peak(rows: int) -> int:
        hidden = torch.randn(rows, hidden_size, requires_grad=True)
        weight = torch.randn(vocabulary, hidden_size, requires_grad=True)
        labels, ones = torch.arange(rows), torch.ones(rows)
        with LiveBytes() as memory:
            Rows(hidden, weight, None, transform, chunk).cross_entropy(
                labels, ones, loss
            ).backward()
        return memory.peak

    buffers = 1 if transform.softcap is None else 2
    gradients_of_rows = 4 * hidden_size
    expected = buffers * 4 * chunk * vocabulary + 4 * vocabulary * hidden_size
    # beside the buffer and the gradients, some numbers a row of the chunk and of the batch
    slack = 64 * (chunk + 1)
    for rows in (64, 512):
        assert peak(rows) <= expected + rows * gradients_of_rows + slack
    assert peak(512) - peak(64) == (512 - 64) * gradients_of_rows


class LiveBytes(TorchDispatchMode):
    """The most bytes that were alive at once, of tensors made inside, and all their shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.shapes: set[tuple[int, ...]] = set()
        self._live: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in (*args, *(kwargs or {}).values()) if isinstance(t, torch.Tensor)]
        given = {tensor.untyped_storage()._cdata for tensor in tensors}
        if isinstance(result, torch.Tensor):
            storage = result.untyped_storage()
            key = storage._cdata
            if key not in given and key not in self._live:
                self._live[key] = storage.nbytes()
                self.shapes.add(tuple(result.shape))
                weakref.finalize(storage, self._live.pop, key, None)
                self.peak = max(self.peak, sum(self._live.values()))
        return result
