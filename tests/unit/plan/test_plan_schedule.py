"""Learning rates against lists computed by hand."""

from math import cos, pi

import pytest
from plan_builders import config, phase, schedule

from curriculum.errors import UserError
from curriculum.plan.schedule import learning_rate


def rates(settings):
    return [
        learning_rate(settings, name, step)
        for name, p in settings.plan.phases.items()
        for step in range(p.steps)
    ]


def two_phases(curve, first=4, second=6, **more):
    return config({"a": phase(steps=first), "b": phase(steps=second, **more)}, schedule=curve)


def test_wsd_over_the_plan():
    found = rates(two_phases(schedule("wsd", 2, 4, 0.2)))
    # warm-up 1/2, 1; plateau; the last four steps fall by 0.8/4 each and would next reach 0.2
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 1.0, 0.8, 0.6, 0.4])


def test_warm_up_longer_than_the_first_phase_runs_on():
    found = rates(two_phases(schedule("wsd", 5, 0, 0.0), first=2, second=4))
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1])


def test_decay_stays_in_the_last_phase():
    found = rates(two_phases(schedule("wsd", 0, 100, 0.0), first=3, second=4))
    assert found == pytest.approx([1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_no_earlier_rate_depends_on_a_later_phase():
    curve = schedule("wsd", 3, 5, 0.1)
    short, long = (rates(two_phases(curve, second=n))[:4] for n in (6, 600))
    assert short == long


def test_lr_and_lr_scale_multiply():
    settings = two_phases(schedule("constant", 0, 0, 1.0), lr_scale=0.5)
    settings.optim.lr = 2e-4
    assert rates(settings) == pytest.approx([2e-4] * 4 + [1e-4] * 6)


def test_cosine_over_the_plan():
    found = rates(two_phases(schedule("cosine", 2, 0, 0.1)))
    falling = [0.1 + 0.9 * (1 + cos(pi * k / 8)) / 2 for k in range(8)]
    assert found == pytest.approx([0.5, 1.0, *falling])
    assert falling[4] == pytest.approx(0.55), "half way between 1 and 0.1"


def test_cosine_in_each_phase():
    found = rates(two_phases(schedule("cosine", 1, 0, 0.0, "phase"), first=3, second=5))
    assert found == pytest.approx(
        [1, 1, 0.5, 1, 1, (1 + cos(pi / 4)) / 2, 0.5, (1 + cos(3 * pi / 4)) / 2]
    )


def test_wsd_in_each_phase():
    found = rates(two_phases(schedule("wsd", 2, 2, 0.0, "phase"), first=5, second=4))
    assert found == pytest.approx([0.5, 1, 1, 1, 0.5, 0.5, 1, 1, 0.5])


def test_constant_warms_up_once():
    found = rates(two_phases(schedule("constant", 2, 9, 0.0)))
    assert found == pytest.approx([0.5] + [1] * 9)


def test_a_phase_may_have_its_own_schedule():
    own = schedule("wsd", 2, 2, 0.0, "phase")
    found = rates(two_phases(schedule("constant", 0, 0, 1.0), second=5, schedule=own))
    assert found == pytest.approx([1] * 4 + [0.5, 1, 1, 1, 0.5])


def test_steps_of_the_other_branch_do_not_count():
    settings = config(
        {
            "a": phase(steps=2),
            "left": phase(steps=50, after="a"),
            "right": phase(steps=2, after="a"),
            "both": phase(steps=2, after=["right", "left"], objective="merge"),
        },
        schedule=schedule("constant", 4, 0, 1.0),
    )
    assert learning_rate(settings, "right", 0) == pytest.approx(3 / 4)


def test_unknown_length_matters_only_where_it_is_used():
    phases = {"open": phase(steps=None, epochs=1.0), "b": phase(steps=4)}
    plain = config(phases, schedule=schedule("wsd", 0, 2, 0.0))
    assert learning_rate(plain, "b", 3) == pytest.approx(0.5)
    for kind in ("wsd", "cosine"):
        with pytest.raises(UserError, match=r"plan\.phases\.open: its length is not known"):
            learning_rate(config(phases, schedule=schedule(kind, 2, 2, 0.0)), "b", 0)


def branches(curve, **end):
    """a (2 steps) -> b (3) and c (4), merged in d."""
    phases = {
        "a": phase(steps=2),
        "b": phase(steps=3, after="a"),
        "c": phase(steps=4, after="a"),
        "d": {"objective": "merge", "after": ["b", "c"]},
    }
    return config({**phases, **end}, schedule=curve)


def of_phase(settings, name):
    steps = range(settings.plan.phases[name].steps)
    return [learning_rate(settings, name, step) for step in steps]


def test_branches_go_on_from_their_parent_and_decay_before_they_are_merged():
    settings = branches(schedule("wsd", 4, 2, 0.0))
    assert of_phase(settings, "a") == pytest.approx([0.25, 0.5])
    assert of_phase(settings, "b") == pytest.approx([0.75, 1, 0.5])
    assert of_phase(settings, "c") == pytest.approx([0.75, 1, 1, 0.5])


def test_branches_do_not_decay_where_training_goes_on_after_the_merge():
    settings = branches(schedule("wsd", 4, 2, 0.0), e=phase(steps=2))
    assert of_phase(settings, "b") == pytest.approx([0.75, 1, 1])
    assert of_phase(settings, "e") == pytest.approx([1, 0.5])


def test_cosine_runs_over_the_longest_line():
    settings = branches(schedule("cosine", 0, 0, 0.0), e=phase(steps=4, after="d"))
    # a, then the branch with more phases or, of equal ones, the first, then e: 2 + 3 + 4 steps
    expected = [(1 + cos(pi * step / 9)) / 2 for step in range(9)]
    assert of_phase(settings, "a") + of_phase(settings, "b") == pytest.approx(expected[:5])
    assert of_phase(settings, "e") == pytest.approx(expected[5:])
