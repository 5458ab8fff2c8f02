"""Contradictions between values that are each valid."""

import pytest
from plan_builders import config, phase

from curriculum.errors import UserError
from curriculum.plan.consistency import consistent


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"steps": 3, "max_steps": 4}, r"plan\.phases\.a\.max_steps=4: steps=3 is exact"),
        ({"steps": 3, "epochs": 1.0}, r"plan\.phases\.a\.epochs=1\.0: steps=3 is exact"),
        ({"steps": None}, r"plan\.phases\.a\.steps: the phase has no length"),
        ({"batch_size": 2, "micro_batch_size": 3}, "larger than batch_size=2"),
        ({"objective": "retrieval", "task": "retrieval", "retrieval": None}, "temperature"),
        ({"objective": "retrieval", "task": "qa"}, "task='qa': does not fit objective"),
        ({"objective": "causal", "task": "retrieval"}, "does not fit objective 'causal'"),
        ({"data": {"sources": []}}, r"data\.sources=\[\]"),
    ],
)
def test_refused(bad, message):
    with pytest.raises(UserError, match=message):
        consistent(config({"a": phase(**bad)}))


def test_all_problems_at_once():
    with pytest.raises(UserError) as caught:
        consistent(config({"a": phase(steps=None), "b/c": phase()}))
    assert len(str(caught.value).splitlines()) == 2


def test_unbounded_replay_is_left_to_its_check():
    replay = phase("replay", "causal", "text", steps=None)
    assert consistent(config({"r": replay, "a": phase()})).plan.phases["r"].steps is None


def test_a_users_objective_may_use_any_task():
    own = phase(objective={"_target_": "mine.Loss"}, task="retrieval")
    consistent(config({"a": own}))
