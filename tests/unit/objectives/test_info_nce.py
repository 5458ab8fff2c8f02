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
