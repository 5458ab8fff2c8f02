"""Choice steps and predictions are plain PyTorch's with whole-vocabulary logits, in any layout."""

from typing import Any

import choice_reference as reference
import pytest
import tiny
import torch
from choice_cases import GRANITE, LAYOUTS, SOFTCAP
from launch import launch
from transformers import PreTrainedModel

# processes, and how many copies of the weights they hold
WORLDS = ["1-1", "2-1", *(pytest.param(world, marks=pytest.mark.slow) for world in ("4-1", "4-2"))]


@pytest.fixture(scope="module", params=WORLDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("choice") / "found.json"
    processes, replicate = request.param.split("-")
    return launch(int(processes), out, replicate, script="choice_cases.py")


def _assert_one_sgd_step(got: Any, lm: PreTrainedModel, loss: torch.Tensor) -> None:
    """The reference is in float64: what differs is float32 rounding, as in the other steps."""
    loss.backward()
    gradients = [p.grad for p in lm.parameters() if p.grad is not None]
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    torch.optim.SGD(lm.parameters(), lr=0.1).step()
    assert got["applied"]
    assert got["loss"] == pytest.approx(loss.item(), rel=2e-6)
    assert got["norm"] == pytest.approx(norm.item(), rel=1e-5)
    weights = dict(lm.named_parameters())
    assert got["weights"].keys() == weights.keys()
    for name, expected in weights.items():
        actual = torch.tensor(got["weights"][name]).double().reshape(expected.shape)
        torch.testing.assert_close(actual, expected.detach(), atol=1e-6, rtol=2e-5, msg=name)


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_is_plain_pytorchs_at_every_layout(found: Any, tied: bool) -> None:
    made = reference.segments()
    for per_bin, micro in LAYOUTS[tied]:
        lm = tiny.reference_model(tiny.model_config(tied))
        got = found["steps"][f"default-tied{tied}-bin{per_bin}-micro{micro}"]
        _assert_one_sgd_step(got, lm, reference.loss(lm, made))
        assert got["trained"] == sum(row.weight > 0 for one in made for row in one.rows)


@pytest.mark.parametrize("name", reference.LOSSES)
def test_shipped_losses(found: Any, name: str) -> None:
    lm = tiny.reference_model(tiny.model_config(True))
    loss = reference.loss(lm, reference.segments(), reference.LOSSES[name][1])
    _assert_one_sgd_step(found["steps"][name], lm, loss)


@pytest.mark.parametrize("name", ["softcap", "granite"])
def test_the_heads_own_transform_is_honoured(found: Any, name: str) -> None:
    options = SOFTCAP if name == "softcap" else GRANITE
    lm = tiny.reference_model(tiny.model_config(False, **options))
    _assert_one_sgd_step(found["steps"][name], lm, reference.loss(lm, reference.segments()))


@pytest.mark.parametrize("tied", [True, False])
def test_ranks_and_micro_batches_without_a_row_take_part(found: Any, tied: bool) -> None:
    made = [
        reference.Segment(one.tokens, one.rows if place == 0 else [])
        for place, one in enumerate(reference.segments())
    ]
    for row in made[0].rows:
        row.weight = 2.0
    lm = tiny.reference_model(tiny.model_config(tied))
    _assert_one_sgd_step(found["few_rows"][f"one-tied{tied}"], lm, reference.loss(lm, made))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["masked", "empty"])
def test_a_step_without_weight_changes_nothing(found: Any, name: str, tied: bool) -> None:
    got = found["few_rows"][f"{name}-tied{tied}"]
    assert got["kept"] and not got["applied"]
    assert got["trained"] == 0
    assert got["note"] is None  # no fault of the loss


def test_predictions_are_the_models_own_logits(found: Any) -> None:
    lm = tiny.reference_model(tiny.model_config(True)).eval()
    for name, per_rank in found["predictions"].items():
        made = reference.segments()[: int(name.split("-")[0])]
        assert all(got == per_rank[0] for got in per_rank), name
        assert len(per_rank[0]) == len(made)
        for segment, got in zip(made, per_rank[0], strict=True):
            scores = reference.full_logits(lm, segment)
            expected = [scores[row.position, i].item() for row in segment.rows for i in row.choices]
            assert got == pytest.approx(expected, abs=1e-5), name


@pytest.mark.parametrize("tied", [True, False])
def test_predictions_change_no_norm_and_no_weight(found: Any, tied: bool) -> None:
    plain, evaluated = found["evaluation"][f"tied{tied}"]
    assert evaluated == plain


def test_choice_steps_stand_between_other_objectives(found: Any) -> None:
    exact, half = (found["after_other_objectives"][name] for name in ("float32", "bfloat16"))
    for (loss, applied), (rough, applied_too) in zip(exact, half, strict=True):
        assert applied and applied_too
        assert rough == pytest.approx(loss, rel=0.02)


WRONG = {
    "raises": "raised KeyError: 'no such\\ncolumn' (",
    "exits": "raised SystemExit: enough (",
    "three": "returned a tuple of 3, not (loss_sum, weight_sum) (rank",
    "vector": "as loss_sum, not a scalar (rank",
    "text": "returned a str as loss_sum, not a scalar (rank",
    "detached": "returned a loss_sum that does not depend on choice_logits (detached?) (rank",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_fails_is_reported_on_every_rank(found: Any, name: str) -> None:
    told = found["failures"][name]
    last = len(told) - 1
    for each in told:
        message = each["error"]
        assert message.startswith(f"loss.import_path=bad_losses.{name}: "), message
        assert WRONG[name] in message
        assert message.endswith(f"(rank {last})")
        assert "\n" not in message
        assert each["kept"] and each["next"]
    if name == "raises":
        assert "bad_losses.py, line" in told[0]["error"]


DROPPED = {
    "nan": "returned loss_sum=nan for finite logits",
    "negative": "returned weight_sum=-10",
    "slope": "its gradient is not finite for finite logits",
}


@pytest.mark.parametrize("name", DROPPED)
def test_a_loss_that_is_no_number_drops_the_step_and_is_named(found: Any, name: str) -> None:
    told = found["failures"][name]
    for each in told:
        assert not each["applied"] and each["kept"] and each["next"]
        assert each["note"].startswith(f"loss.import_path=bad_losses.{name}: {DROPPED[name]}")
