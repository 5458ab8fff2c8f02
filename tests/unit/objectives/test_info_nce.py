"""InfoNCE against values worked out by hand."""

import math

import pytest
import torch

from curriculum.objectives.retrieval import info_nce

E = torch.eye(6)


def test_two_queries_and_their_documents() -> None:
    # similarity of each query: 1 to its own document, 0 to the other; temperature 0.5
    embeddings = torch.stack([E[0], E[0], E[1], E[1]])
    losses = info_nce(embeddings, torch.tensor([1, 2, 3, 4]), [2, 2], 0.5)
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-2))] * 2, rel=1e-6)


def test_explicit_negatives_count() -> None:
    embeddings = torch.stack([E[0], E[0], E[1], E[2]])
    (loss,) = info_nce(embeddings, torch.tensor([1, 2, 3, 4]), [4], 1.0).tolist()
    assert loss == pytest.approx(math.log((math.e + 2) / math.e), rel=1e-6)


def test_documents_of_other_groups_are_negatives_too() -> None:
    embeddings = torch.stack([E[0], E[0], E[1], E[2], E[2], E[3]])
    losses = info_nce(embeddings, torch.tensor([1, 2, 3, 4, 5, 6]), [3, 3], 1.0)
    assert losses.tolist() == pytest.approx([math.log((math.e + 3) / math.e)] * 2, rel=1e-6)


def test_a_shared_document_is_no_negative() -> None:
    """Two of four queries share a document; embeddings are perfect: no loss, no gradient."""
    embeddings = torch.stack([E[0], E[0], E[0], E[0], E[1], E[1], E[2], E[2]]).requires_grad_()
    ids = torch.tensor([1, 9, 2, 9, 3, 10, 4, 11])
    losses = info_nce(embeddings, ids, [2, 2, 2, 2], 0.01)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0.0] * 4, abs=1e-6)
    assert embeddings.grad is not None
    assert embeddings.grad.abs().max() < 1e-6
    # without the identity of the shared document there would be a floor of ln 2
    distinct = info_nce(embeddings.detach(), torch.arange(8), [2, 2, 2, 2], 0.01)
    assert distinct[:2].tolist() == pytest.approx([math.log(2)] * 2, rel=1e-5)


def test_positives_of_an_equal_query_are_no_negatives() -> None:
    embeddings = torch.stack([E[0], E[0], E[0], E[0]])
    losses = info_nce(embeddings, torch.tensor([7, 1, 7, 2]), [2, 2], 0.1)
    assert losses.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_negative_equal_to_the_positive_is_masked() -> None:
    embeddings = torch.stack([E[0], E[0], E[0], E[1]])
    (loss,) = info_nce(embeddings, torch.tensor([1, 2, 2, 3]), [4], 1.0).tolist()
    assert loss == pytest.approx(math.log((math.e + 1) / math.e), rel=1e-6)


def test_symmetric_is_the_mean_of_both_directions() -> None:
    """The second query lies on the first document too; the second document is its own."""
    between = (E[0] + E[1]) / math.sqrt(2)
    embeddings = torch.stack([E[0], E[0], between, E[1]])
    ids = torch.tensor([1, 2, 3, 4])
    c = 1 / math.sqrt(2)
    # similarities: query 0 -> (1, 0), query 1 -> (c, c); read by columns: (1, c), (0, c)
    forth = [math.log(1 + math.exp(-1)), math.log(2)]
    back = [math.log(1 + math.exp(c - 1)), math.log(1 + math.exp(-c))]
    expected = [(f + b) / 2 for f, b in zip(forth, back, strict=True)]
    losses = info_nce(embeddings, ids, [2, 2], 1.0, symmetric=True)
    assert losses.tolist() == pytest.approx(expected, rel=1e-6)


def test_symmetric_has_no_queries_of_negatives_only() -> None:
    """An explicit negative is a candidate of its query; no query has to be found from it."""
    embeddings = torch.stack([E[0], E[0], E[1]])
    (loss,) = info_nce(embeddings, torch.tensor([1, 2, 3]), [3], 1.0, symmetric=True).tolist()
    assert loss == pytest.approx(math.log((math.e + 1) / math.e) / 2, rel=1e-6)


@pytest.mark.parametrize("ids", [[1, 9, 2, 9], [7, 1, 7, 2]], ids=["same positive", "same query"])
def test_symmetric_masks_the_same_pairs(ids: list[int]) -> None:
    embeddings = torch.stack([E[0], E[0], E[0], E[0]]).requires_grad_()
    losses = info_nce(embeddings, torch.tensor(ids), [2, 2], 0.1, symmetric=True)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert embeddings.grad is not None
    assert embeddings.grad.abs().max() < 1e-6


@pytest.mark.parametrize("symmetric", [False, True])
def test_many_masked_pairs_leave_loss_and_gradient_finite(symmetric: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(12, 6, generator=generator, dtype=torch.float64).requires_grad_()
    ids = torch.tensor([1, 9, 9, 1, 9, 8, 2, 9, 9, 3, 8, 9])
    losses = info_nce(embeddings, ids, [3, 3, 3, 3], 0.01, symmetric)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert embeddings.grad is not None
    assert torch.isfinite(embeddings.grad).all()
