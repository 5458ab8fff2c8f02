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


def merged(**more):
    """Two branches of one phase and what joins them."""
    return {
        "a": phase(),
        "b": phase(after="a"),
        "c": phase(after="a"),
        "d": {"objective": "merge", "after": ["b", "c"], **more},
    }


def test_a_merge_needs_neither_steps_nor_data():
    found = consistent(config(merged())).plan.phases["d"]
    assert found.steps is None and found.data.sources == []
    weighted = consistent(config(merged(merge={"weights": {"b": 3, "c": 1}}))).plan.phases["d"]
    assert weighted.merge.weights == {"b": 3, "c": 1}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"steps": 3}, r"plan\.phases\.d\.steps=3: a merge trains on nothing; leave it out"),
        ({"epochs": 1.0}, r"plan\.phases\.d\.epochs=1\.0: a merge trains on nothing"),
        ({"data": {"sources": ["x"]}}, r"plan\.phases\.d\.data\.sources=.*trains on nothing"),
        ({"merge": {"weights": {"b": 1}}}, r"of b; give one for each of after=\['b', 'c'\]"),
        ({"merge": {"weights": {"b": 1, "c": 1, "a": 1}}}, r"weights: of b, c, a; give one"),
    ],
)
def test_a_merge_refuses_what_it_does_not_use(bad, message):
    with pytest.raises(UserError, match=message):
        consistent(config(merged(**bad)))


@pytest.mark.parametrize("weight", [0, -1])
def test_weights_of_a_merge_are_above_zero(weight):
    with pytest.raises(UserError, match=r"plan\.phases\.d\.merge\.weights\.b=.*greater than 0"):
        config(merged(merge={"weights": {"b": weight, "c": 1}}))


def test_only_a_merge_has_weights():
    with pytest.raises(UserError, match="objective is 'generative', only merge averages"):
        consistent(config({"a": phase(merge={"weights": None})}))


def test_an_ordinary_phase_still_needs_its_fields():
    with pytest.raises(UserError, match=r"plan\.phases\.a\.batch_size: required, but not given"):
        config({"a": {"objective": "causal", "task": "text", "role": "replay"}})
