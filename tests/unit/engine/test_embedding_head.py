"""A directory says itself what embedding head it holds, and none is left out or put in silently."""

import json
from pathlib import Path

import pytest
import torch
from test_build import made, of

from curriculum.engine import embedding_head
from curriculum.engine.model import build_lm
from curriculum.errors import UserError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made("llama", 2).save_pretrained(tmp_path)
    embedding_head.save(torch.arange(96.0).view(3, 32), tmp_path)
    return tmp_path


def test_a_head_that_would_be_left_out_is_refused(directory: Path) -> None:
    assert embedding_head.stored_size(directory) == 3
    with pytest.raises(UserError, match=r"embedding_dim=null would leave out.*embedding_dim=3"):
        build_lm(of(), 0, directory)


def test_a_head_of_another_size_is_refused(directory: Path) -> None:
    lm = build_lm(of(), 0)
    embedding_head.add(lm, 3, 0, directory)
    assert torch.equal(lm.embedding_head.weight, torch.arange(96.0).view(3, 32))
    with pytest.raises(
        UserError, match=r"embedding_dim=5: .*\[3, 32\].*give model.embedding_dim=3"
    ):
        embedding_head.add(build_lm(of(), 0), 5, 0, directory)


@pytest.mark.parametrize(
    ("name", "value"), [("bias", True), ("activation_function", "torch.nn.modules.Tanh")]
)
def test_a_head_that_is_more_than_a_matrix_is_refused(
    directory: Path, name: str, value: object
) -> None:
    file = directory / "2_Dense" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(UserError, match=f"{name} is {value!r}"):
        build_lm(of(embedding_dim=3), 0, directory)


def test_a_model_from_nothing_draws_its_head_from_the_seed(directory: Path) -> None:
    first, again, other = (build_lm(of(embedding_dim=3), seed).embedding_head for seed in (0, 0, 1))
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    assert first.weight.requires_grad and first.weight.std().item() == pytest.approx(
        32**-0.5, rel=0.3
    )
