"""Pooling and layer choice of text embeddings."""

import pytest
import torch

from curriculum.engine.head import pooled, states_of, unit
from curriculum.errors import UserError


def test_the_mean_is_of_each_texts_own_tokens() -> None:
    hidden = torch.tensor([[3.0, 0.0], [3.0, 8.0], [0.0, 5.0]])
    got = unit(pooled(hidden, torch.tensor([1, 2]), [2, 1], "mean"))
    torch.testing.assert_close(got, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))


def test_a_layer_that_does_not_exist_is_named() -> None:
    layers = [torch.nn.Linear(2, 2)] * 2
    rule = r"retrieval\.layer=3: the model has layers 1 to 2"
    with pytest.raises(UserError, match=rule), states_of(layers, 3):
        pass


def test_no_hook_stays_behind() -> None:
    layers = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    with states_of(layers, 1) as states:
        value = layers[0](torch.ones(1, 2))
        layers[1](value)
    assert torch.equal(states(None), value)
    assert not layers[0]._forward_hooks
