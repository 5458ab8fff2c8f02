"""The head of choices against logits of the whole vocabulary in plain PyTorch, float64."""

import itertools

import pytest
import torch

from curriculum.engine.choices import Choices
from curriculum.engine.head import Transform, choice_logits, padded_logits
from curriculum.engine.head.choices import PAD

COUNTS = [2, 4, 5, 3, 2, 5, 1, 2, 4]
HIDDEN, VOCABULARY = 8, 31


def choices(counts: list[int] = COUNTS, seed: int = 0) -> Choices:
    """Rows with some candidates in common, and one token that is everybody's."""
    draw = torch.Generator().manual_seed(seed)
    width = max(counts, default=0)
    ids = torch.zeros(len(counts), width, dtype=torch.long)
    for row, count in enumerate(counts):
        ids[row, :count] = torch.randperm(VOCABULARY - 1, generator=draw)[:count] + 1
        ids[row, 0] = 0
    empty = torch.zeros(len(counts))
    return Choices(
        positions=torch.arange(len(counts)),
        ids=ids,
        counts=torch.tensor(counts, dtype=torch.long),
        target_probs=torch.zeros(ids.shape),
        weights=empty,
        mix_weights=empty[:, None],
        mix_components=["only"],
        trained=0,
    )


def inputs(rows: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    shapes = ((rows, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,))
    return [torch.randn(s, generator=draw, dtype=dtype).requires_grad_() for s in shapes]


def full(hidden, weight, bias, transform: Transform) -> torch.Tensor:
    scores = hidden @ weight.t()
    if bias is not None:
        scores = scores + bias
    scores = scores * transform.scale
    if transform.softcap:
        scores = transform.softcap * torch.tanh(scores / transform.softcap)
    return scores


@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("transform", [Transform(), Transform(0.5), Transform(2.0, 3.0)])
def test_logits_and_gradients_are_those_of_the_whole_vocabulary(
    transform: Transform, with_bias: bool, chunk_rows: int
) -> None:
    asked = choices()
    leaves = inputs(len(COUNTS))
    leaves = leaves if with_bias else leaves[:2]
    bias = leaves[2] if with_bias else None
    factors = torch.randn(asked.ids.shape, dtype=torch.float64)
    got = choice_logits(*leaves[:2], bias, asked, transform, chunk_rows)
    everything = full(*leaves[:2], bias, transform)
    expected, kept = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for row, count in enumerate(COUNTS):
        for slot in range(count):
            one = everything[row, asked.ids[row, slot]]
            assert got[row, slot].item() == pytest.approx(one.item(), rel=1e-12)
            expected = expected + factors[row, slot] * one
            kept = kept + factors[row, slot] * got[row, slot]
        assert (got[row, count:] == PAD).all()
    for mine, theirs in zip(
        torch.autograd.grad(kept, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def test_whatever_gradient_reaches_a_padded_slot_is_dropped() -> None:
    asked = choices()
    hidden, weight, bias = inputs(len(COUNTS))
    logits = choice_logits(hidden, weight, bias, asked, Transform(2.0, 3.0), 4)
    upstream = torch.ones_like(logits)
    clean = torch.autograd.grad(logits, [hidden, weight, bias], upstream, retain_graph=True)
    padded = torch.arange(5) >= asked.counts[:, None]
    for junk in (float("nan"), float("inf"), 7.0):
        dirty = upstream.masked_fill(padded, junk)
        again = torch.autograd.grad(logits, [hidden, weight, bias], dirty, retain_graph=True)
        assert all(map(torch.equal, clean, again))


def test_padding_is_nothing_to_a_softmax_over_the_row() -> None:
    asked = choices()
    logits = choice_logits(*inputs(len(COUNTS), torch.float32), asked, Transform(), 4)
    whole = logits.log_softmax(-1)
    for row, count in enumerate(COUNTS):
        assert torch.equal(whole[row, :count].exp().sum(), whole[row].exp().sum())
        torch.testing.assert_close(whole[row, :count], logits[row, :count].log_softmax(-1))
    assert (torch.zeros_like(whole) * whole == 0).all()


def test_no_row_still_reaches_every_weight() -> None:
    for asked in (None, choices([])):
        hidden, weight, bias = inputs(0)
        logits = choice_logits(hidden, weight, bias, asked, Transform(), 4)
        assert logits.shape == (0, 0)
        for gradient in torch.autograd.grad(logits.sum(), [hidden, weight, bias]):
            assert not gradient.any()


def test_bfloat16_models_get_float32_logits_and_exact_sums_of_gradients() -> None:
    """300 rows ask about one token: a sum in bfloat16 would stop growing at 256."""
    rows = 300
    asked = choices([1] * rows)
    hidden = torch.ones(rows, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.full((VOCABULARY, HIDDEN), 1 + 2**-7, dtype=torch.bfloat16, requires_grad=True)
    logits = choice_logits(hidden, weight, None, asked, Transform(), 7)
    assert logits.dtype == torch.float32
    assert (logits == HIDDEN * (1 + 2**-7)).all()  # 8.0625, which bfloat16 cannot hold
    (gradient,) = torch.autograd.grad(logits.sum(), weight)
    assert gradient.dtype == torch.bfloat16
    assert (gradient[0] == 300).all() and not gradient[1:].any()


def test_flat_logits_are_padded_as_the_head_pads_them() -> None:
    asked = choices()
    logits = choice_logits(*inputs(len(COUNTS), torch.float32), asked, Transform(), 4).detach()
    flat = torch.tensor(
        list(itertools.chain(*(logits[row, :n].tolist() for row, n in enumerate(COUNTS))))
    )
    assert torch.equal(padded_logits(flat, asked.counts), logits)
    assert padded_logits(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0, 0)
