"""Optimizers over shards take the steps that they take by hand on whole float64 tensors."""

from typing import Any

import pytest
import torch

import optim_reference as reference
from launch import launch
from optim_cases import OTHERS

SCRIPT = "optim_cases.py"
MOMENTS = {
    "adamw": ("exp_avg", "exp_avg_sq", "step"),
    "muon": ("exp_avg", "exp_avg_sq", "step"),  # of the head
    "signsgd": ("exp_avg",),
    "sign": (),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What two ranks found, then one rank, which goes on from checkpoints of the two."""
    folder = tmp_path_factory.mktemp("optim")
    return {
        2: launch(2, folder / "two.json", str(folder), "all", script=SCRIPT),
        1: launch(1, folder / "one.json", str(folder), "resume", script=SCRIPT),
    }


@pytest.fixture(params=[1, 2])
def found(request: pytest.FixtureRequest, both: dict[int, Any]) -> Any:
    return both[request.param]


def _differences(
    got: dict[str, list[float]], expected: dict[str, torch.Tensor]
) -> dict[str, float]:
    assert got.keys() == expected.keys()
    return {
        name: (torch.tensor(got[name]).double().reshape(e.shape) - e).abs().max().item()
        for name, e in expected.items()
    }


@pytest.mark.parametrize("name", reference.OPTIMS)
def test_steps_equal_those_by_hand_at_every_layout(found: Any, name: str) -> None:
    """A weight moves by 1e-2 or more in a step, so 2e-6 is a relative 2e-4 of one step."""
    expected = reference.trained(name)
    for micro in (1, 4):
        differences = _differences(found["trajectories"][f"{name}-micro{micro}"], expected)
        assert max(differences.values()) < 2e-6, (micro, differences)


def test_each_expert_is_made_orthogonal_on_its_own(found: Any) -> None:
    """Three experts, so two ranks hold two and one. AdamW's first step on embeddings whose
    gradient is near its `eps` is left out: there a rounding error is as large as the step."""
    differences = _differences(found["experts"], reference.trained("muon", moe=True, steps=1))
    hidden = {n: d for n, d in differences.items() if reference.is_hidden_matrix(n)}
    assert sum("experts" in n for n in hidden) == 4
    assert max(hidden.values()) < 2e-6, hidden


def test_replicas_take_the_same_step(tmp_path: Any) -> None:
    """Two replicas of two shards: rows travel between the shards of one replica only."""
    got = launch(4, tmp_path / "found.json", str(tmp_path), "replicas", script=SCRIPT)
    expected = reference.trained("muon")
    assert got["trajectories"].keys() == {"muon-micro1", "muon-micro4"}
    for weights in got["trajectories"].values():
        assert max(_differences(weights, expected).values()) < 2e-6


@pytest.mark.parametrize("name", reference.OPTIMS)
def test_a_phase_without_the_head_keeps_the_head_and_its_moments(found: Any, name: str) -> None:
    got = found["untouched"][name]
    head = ["lm_head.weight", *(f"lm_head.weight/{kind}" for kind in MOMENTS[name])]
    assert got["kept"] == head
    assert set(head) < set(got["all"])
    assert got["later"] == []


@pytest.mark.parametrize("name", reference.OPTIMS)
def test_moments_are_carried_or_reset(found: Any, name: str) -> None:
    got = found["boundary"][name]
    assert got["reset"] == got["new"]
    assert (got["reset"] == got["carry"]) == (name == "sign")  # which has no moments


@pytest.mark.parametrize("name", reference.OPTIMS)
def test_a_loaded_checkpoint_goes_on_bit_equal(found: Any, name: str) -> None:
    got = found["checkpoints"][name]
    assert got["equal"] == [True, True]
    head = {f"lm_head.weight/{kind}" for kind in MOMENTS[name]}
    assert set(got["late"]) - set(got["early"]) == head


@pytest.mark.parametrize("name", reference.OPTIMS)
def test_a_checkpoint_of_two_ranks_goes_on_with_one(both: dict[int, Any], name: str) -> None:
    expected = {
        n: torch.tensor(w).double() for n, w in both[2]["checkpoints"][name]["weights"].items()
    }
    assert max(_differences(both[1]["resumed"][name], expected).values()) < 2e-6


@pytest.mark.parametrize(("kept", "given"), OTHERS)
def test_moments_of_another_optimizer_are_refused(found: Any, kept: str, given: str) -> None:
    message = found["checkpoints"][f"{kept} into {given}"]
    assert "holds moments of another optimizer" in message
    assert "give optim= as it was" in message
    assert "\n" not in message
