"""`budget.scale`."""

from dataclasses import replace

import pytest
from plan_builders import config, corrective, phase, schedule

from curriculum.plan.scale import phase_steps, scaled, shown, times

DEMO = {"scale": {"steps": 0.1, "batch_size": 0.25, "seq_len": 0.125}}


@pytest.mark.parametrize(
    ("value", "factor", "expected"),
    [
        (1800, 0.1, 180),
        (150, 0.1, 15),
        (25, 0.1, 3),  # 2.5 rounds up, not to even
        (35, 0.1, 4),
        (24, 0.1, 2),
        (3, 0.1, 1),  # at least 1
        (0, 0.1, 0),  # no warm-up stays none
        (4096, 0.125, 512),
        (115, 1.1, 127),  # 126.5 in decimal, 126.50000000000001 in binary
        (7, 1.0, 7),
    ],
)
def test_rounding(value, factor, expected):
    assert times(value, factor) == expected


def test_shown():
    assert shown(1800, 0.1) == "1800 x 0.1 = 180"
    assert shown(1800, 1.0) == "1800"


def test_the_demo_keeps_the_shares():
    phases = scaled(corrective(budget=DEMO)).plan.phases.values()
    assert sum(p.steps for p in phases) == 655
    assert sum(p.steps * p.batch_size * p.seq_len for p in phases) == 1_383_040


def test_intervals_scale_and_the_result_has_scale_one():
    own = phase(steps=50, schedule=schedule("cosine", 20, 0, 0.0, "phase"), micro_batch_size=2)
    before = config({"a": own}, schedule=schedule("wsd", 200, 600, 0.1), budget=DEMO)
    after = scaled(before)
    assert (after.schedule.warmup_steps, after.schedule.decay_steps) == (20, 60)
    assert after.plan.phases["a"].schedule.warmup_steps == 2
    assert after.checkpoint.every_steps == 10
    assert after.plan.phases["a"].steps == 5
    assert after.plan.phases["a"].micro_batch_size == after.plan.phases["a"].batch_size == 1
    assert scaled(after) == after
    assert before.plan.phases["a"].steps == 50, "the given configuration is left alone"


def test_what_is_kept_of_the_checkpoints_scales_and_never_stays_never():
    before = config({"a": phase(steps=50)}, budget=DEMO)
    policy = replace(before.checkpoint, every_steps=None, keep_every=500)
    after = scaled(replace(before, checkpoint=policy)).checkpoint
    assert (after.every_steps, after.keep_every, after.keep_last) == (None, 50, 1)


def test_length_of_a_phase_from_the_plan_alone():
    plan = config(
        {
            "exact": phase(steps=7),
            "capped": phase(steps=None, max_steps=9, epochs=2.0),
            "open": phase(steps=None, epochs=2.0),
        }
    ).plan.phases
    assert [phase_steps(p) for p in plan.values()] == [7, 9, None]
