"""Order and errors of the phase graph."""

import pytest
from plan_builders import config, phase

from curriculum.errors import UserError
from curriculum.plan.graph import ancestors, closing, order, parents, unfinished


def plan_of(**after):
    return config({name: phase(**more) for name, more in after.items()}).plan


def test_null_means_the_phase_above():
    plan = plan_of(a={}, b={}, c={})
    assert parents(plan) == {"a": (), "b": ("a",), "c": ("b",)}
    assert order(plan) == ["a", "b", "c"]


def test_parents_come_first_whatever_the_declaration_says():
    plan = plan_of(a={"after": "c"}, b={"after": "a"}, c={"after": []})
    with pytest.raises(UserError, match=r"plan\.phases\.c\.after=\[\]"):
        order(plan)
    plan = plan_of(first={}, late={"after": "early"}, early={"after": "first"})
    assert order(plan) == ["first", "early", "late"]
    assert ancestors(plan, "late") == ["first", "early"]


def test_cycle_is_named():
    plan = plan_of(a={"after": "c"}, b={}, c={})
    with pytest.raises(UserError, match="cycle a -> c -> b -> a"):
        order(plan)


def test_a_phase_after_itself_is_a_cycle():
    with pytest.raises(UserError, match="cycle b -> b"):
        order(plan_of(a={}, b={"after": "b"}))


def test_unknown_parent():
    with pytest.raises(UserError, match=r"plan\.phases\.b\.after='x': no such phase; phases: a, b"):
        order(plan_of(a={}, b={"after": "x"}))


def test_two_last_phases():
    with pytest.raises(UserError, match="b and c have no successor"):
        order(plan_of(a={}, b={"after": "a"}, c={"after": "a"}))


def test_several_parents_need_merge():
    branches = {"a": {}, "b": {"after": "a"}, "c": {"after": "a"}}
    with pytest.raises(UserError, match="objective: merge"):
        order(plan_of(**branches, d={"after": ["b", "c"]}))
    merged = plan_of(**branches, d={"after": ["b", "c"], "objective": "merge"})
    assert order(merged) == ["a", "b", "c", "d"]


def test_a_parent_named_twice():
    with pytest.raises(UserError, match="named twice"):
        order(plan_of(a={}, b={"after": ["a", "a"]}))


def test_empty_plan():
    with pytest.raises(UserError, match="at least one phase"):
        order(config({}).plan)


def diamond(**more):
    branches = {"a": {}, "b": {"after": "a"}, "c": {"after": "a"}}
    return plan_of(**branches, d={"objective": "merge", "after": ["b", "c"]}, **more)


@pytest.mark.parametrize(
    ("finished", "left"),
    [
        ([], ["a", "b", "c", "d"]),
        (["a"], ["b", "c", "d"]),
        (["a", "c"], ["b", "d"]),
        (["b", "c"], ["d"]),  # what a led to is there
        (["b"], ["a", "c", "d"]),
        (["d"], []),
    ],
)
def test_what_is_left_to_run(finished, left):
    assert unfinished(diamond(), finished) == left


def test_a_phase_deleted_in_the_middle_is_not_needed_again():
    plan = plan_of(a={}, b={}, c={}, d={})
    assert unfinished(plan, ["a", "c"]) == ["d"]


def test_closing_phases():
    assert closing(plan_of(a={}, b={}, c={})) == ["c"]
    assert closing(diamond()) == ["b", "c"]
    assert closing(diamond(e={})) == ["e"]
    # b goes on in c, so it is no end of a branch although it is merged
    plan = plan_of(a={}, b={}, c={}, d={"objective": "merge", "after": ["b", "c"]})
    assert closing(plan) == ["c"]


@pytest.mark.parametrize("after", [None, "b", ["b"]])
def test_a_merge_needs_several_parents(after):
    with pytest.raises(UserError, match="merge averages several phases; name two or more"):
        order(plan_of(a={}, b={}, c={"objective": "merge", "after": after}))
