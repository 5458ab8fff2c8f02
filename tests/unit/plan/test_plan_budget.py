"""The budget of the corrective plan, against the figures that were published for it."""

import pytest
from plan_builders import CORRECTIVE, config, corrective, phase

from curriculum.plan.budget import WindowCount, plan_budget, settled, with_known_length


def test_totals_of_the_corrective_plan():
    totals = plan_budget(corrective(), {}).totals
    assert totals["phases"] == 10
    assert totals["steps"] == 6550
    assert totals["nominal_tokens"] == 442_572_800
    assert totals["forward_tokens"] == 462_848_000
    assert totals["flops"] is None
    assert all(type(totals[key]) is int for key in ("steps", "nominal_tokens", "forward_tokens"))


def test_replay_in_each_unit():
    totals = plan_budget(corrective(), {}).totals
    replay = totals["by_role"]["replay"]
    assert replay["nominal_tokens"] == 32_972_800
    assert replay["share"]["nominal"] == pytest.approx(0.07450, abs=5e-6)
    assert replay["share"]["forward"] == pytest.approx(0.1150, abs=5e-5)
    assert replay["share"]["steps"] == pytest.approx(0.191, abs=5e-4)
    assert replay["share"]["flops"] is None
    shares = {name: g["share"]["nominal"] for name, g in totals["by_objective"].items()}
    assert shares["retrieval"] == pytest.approx(0.01527, abs=5e-6)
    assert shares["causal"] == pytest.approx(0.05923, abs=5e-6)


def test_rows_follow_the_table():
    rows = plan_budget(corrective(), {}).phases
    assert [row.name for row in rows] == [line[0] for line in CORRECTIVE]
    for row, (_, role, objective, _, steps, batch, length, _) in zip(rows, CORRECTIVE, strict=True):
        assert (row.role, row.objective, row.steps) == (role, objective, steps)
        assert row.windows_needed == steps * batch
        assert row.nominal_tokens == steps * batch * length
        texts = 4 if objective == "retrieval" else 1
        assert row.forward_tokens == texts * steps * batch * length
        assert not row.forward_exact
        assert row.windows_available is None
    assert sum(row.share["nominal"] for row in rows) == pytest.approx(1)


def test_prepared_data_makes_forward_tokens_exact():
    counts = {"rag_qa": WindowCount(60_000, False, 100_000_000, 5_000_000)}
    budget = plan_budget(corrective(), counts, cached=["rag_qa"])
    first, second = budget.phases[:2]
    assert (first.forward_tokens, first.forward_exact, first.cached) == (100_000_000, True, True)
    assert (first.windows_available, first.windows_exact) == (60_000, False)
    assert not second.forward_exact and not second.cached
    assert budget.totals["forward_tokens"] == 462_848_000 - 117_964_800 + 100_000_000


def test_too_few_prepared_windows_leave_the_bound():
    row = plan_budget(corrective(), {"rag_qa": WindowCount(5, False, None, None)}).phases[0]
    assert (row.forward_tokens, row.forward_exact, row.windows_available) == (117_964_800, False, 5)


def test_epochs_become_steps_once_the_windows_are_known():
    open_ended = config({"a": phase(steps=None, epochs=1.5, batch_size=4)}).plan.phases["a"]
    # 1.5 x 10 windows = 15, in batches of 4: 3.75, so 4 steps
    assert with_known_length(open_ended, 10).steps == 4
    capped = config({"a": phase(steps=None, epochs=1.5, batch_size=4, max_steps=3)}).plan.phases[
        "a"
    ]
    assert with_known_length(capped, 10).steps == 3
    assert with_known_length(config({"a": phase(steps=7)}).plan.phases["a"], 10).steps == 7


def test_a_phase_of_unknown_length_is_unknown_in_the_totals():
    settings = config({"a": phase(), "open": phase(steps=None, epochs=1.0, batch_size=4)})
    budget = plan_budget(settings, {"open": WindowCount(10, False, None, None)})
    assert budget.phases[1].steps is None and budget.phases[1].lr_end is None
    assert budget.totals["steps"] is None and budget.phases[0].share["steps"] is None
    known = plan_budget(settings, {"open": WindowCount(10, True, 80, None)})
    assert known.phases[1].steps == 3
    assert known.totals["steps"] == 13
    assert settled(settings, {}).plan == settings.plan


def test_rates_at_both_ends():
    row = plan_budget(
        config(
            {"a": phase(steps=4, lr_scale=0.5)},
            schedule={
                "kind": "wsd",
                "scope": "plan",
                "warmup_steps": 2,
                "decay_steps": 2,
                "min_ratio": 0.0,
            },
        ),
        {},
    ).phases[0]
    assert (row.lr_start, row.lr_end) == (0.25, 0.25)
