"""What the choice objective takes from its phase, and what it refuses before anything starts."""

from typing import Any

import pytest

from curriculum import config as schema
from curriculum.errors import UserError
from curriculum.objectives import build


def phase(**loss: Any) -> schema.Phase:
    return schema.Phase(
        objective="choice",
        task="choice",
        role="calibration",
        batch_size=4,
        seq_len=8,
        data=schema.PhaseData(sources=["none"]),
        loss=schema.Loss(**loss),
    )


def test_the_default_is_cross_entropy() -> None:
    from curriculum.losses import cross_entropy

    assert build("p", phase()).function is cross_entropy  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"label_smoothing": 0.1}, "objective=choice: label_smoothing and z_loss are for"),
        ({"import_path": "losses"}, "'losses': no import path; give package.module.function"),
        ({"import_path": "no_such.loss"}, "cannot be imported (ModuleNotFoundError: No module"),
        ({"import_path": "curriculum.losses.hinge"}, "cannot be imported (AttributeError: module"),
        ({"import_path": "curriculum.losses._LOSSES"}, "not a function"),
        (
            {"import_path": "curriculum.losses.kl", "kwargs": {"tau": 2}},
            "cannot be called with choice_logits, choice_counts, target_probs, weights, "
            "mix_weights, mix_components and loss.kwargs={'tau': 2} (got an unexpected keyword",
        ),
        ({"kwargs": {"weights": 1}}, "loss.kwargs: weights is given by the phase itself"),
        ({"import_path": "math.sqrt"}, "cannot be called with choice_logits"),
    ],
)
def test_refused_before_anything_starts(loss: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        build("p", phase(**loss))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
