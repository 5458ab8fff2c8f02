"""What an objective takes from its phase, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from curriculum import config as schema
from curriculum.engine.head import Rows, Transform
from curriculum.errors import UserError
from curriculum.objectives import build


def phase(objective: str, **fields: object) -> schema.Phase:
    return schema.Phase(
        objective=objective,
        task="retrieval" if objective == "retrieval" else "messages",
        role="generative",
        batch_size=4,
        seq_len=8,
        data=schema.PhaseData(sources=["none"]),
        retrieval=schema.Retrieval(temperature=0.1, documents=2),
        **fields,  # type: ignore[arg-type]
    )


class _Batch:
    labels = torch.tensor([0, 1])
    weights = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("objective", ["generative", "causal"])
def test_token_objectives_apply_the_loss_of_their_phase(objective: str) -> None:
    """Two tokens, logits 0: -log p is ln 2 whatever the target, log Z is ln 2."""
    rows = Rows(torch.zeros(2, 3), torch.zeros(2, 3), None, Transform(), 1)
    ln2 = 0.6931471805599453
    for loss, expected in (
        (schema.Loss(), 3 * ln2),
        (schema.Loss(label_smoothing=0.5), 3 * ln2),
        (schema.Loss(z_loss=0.1), 3 * ln2 + 0.1 * 3 * ln2**2),
    ):
        (reduce,) = build("p", phase(objective, loss=loss)).prepare_step([_Batch()], None)  # type: ignore[list-item]
        total, weight = reduce(rows)
        assert total.item() == pytest.approx(expected, rel=1e-6)
        assert weight.item() == 3.0


def test_retrieval_refuses_the_loss_of_tokens() -> None:
    build("p", phase("retrieval"))
    with pytest.raises(UserError, match="label_smoothing and z_loss are for objectives of tokens"):
        build("p", phase("retrieval", loss=schema.Loss(z_loss=1e-4)))


def test_retrieval_refuses_a_step_without_a_choice() -> None:
    lonely = replace(phase("retrieval"), batch_size=1, retrieval=schema.Retrieval(0.1, 1))
    with pytest.raises(UserError, match="batch_size 1"):
        build("p", lonely)
