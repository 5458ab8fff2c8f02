"""Each check on a plan that has the fault, and on one that does not."""

import pytest
from plan_builders import config, corrective, phase, schedule

from curriculum.config import UNKNOWN_ROOT
from curriculum.plan.budget import WindowCount, plan_budget
from curriculum.plan.checks import CHECKS, CheckContext, run_checks


def findings(settings, counts=None, missing=None, starting=False):
    budget = plan_budget(settings, counts or {})
    return run_checks(CheckContext(settings, budget, missing or {}, starting))


def codes(*arguments, **more):
    return [(f.code, f.severity, f.phase) for f in findings(*arguments, **more)]


@pytest.fixture
def base(tmp_path):
    return {"init_from": str(tmp_path)}


REPLAY = {"role": "replay", "objective": "causal", "task": "text"}


def test_the_corrective_plan_is_clean(tmp_path):
    settings = corrective(schedule=schedule("wsd", 200, 600, 0.1))
    settings.plan.init_from = str(tmp_path)
    assert codes(settings) == []


def test_one_file_a_check():
    modules = [check.__module__ for check in CHECKS]
    assert len(set(modules)) == len(modules) == 14


def test_ends_on_replay(base):
    bad = config({"a": phase(steps=90), "z": phase(**REPLAY, steps=10)}, **base)
    assert codes(bad) == [
        ("plan/ends-on-replay", "error", "z"),
        ("plan/phase-share", "warning", "a"),
    ]


def test_the_end_is_where_the_graph_ends_not_the_file(base):
    graph = config(
        {
            "start": phase(),
            "replay": phase(**REPLAY, steps=3, after="middle"),
            "end": phase(after="replay"),
            "middle": phase(after="start"),
        },
        **base,
    )
    assert codes(graph) == []


def test_a_merge_ends_on_replay_if_all_its_branches_do(base):
    def ends(b, c):
        merged = {"objective": "merge", "after": ["b", "c"]}
        phases = {
            "a": phase(steps=90),
            "b": phase(**b, steps=5, after="a"),
            "c": phase(**c, steps=5, after="a"),
            "d": merged,
        }
        curve = schedule("wsd", 0, 2, 0.1)
        return {c: p for c, _, p in codes(config(phases, schedule=curve, **base))}

    assert "plan/ends-on-replay" not in ends({}, REPLAY)
    assert ends({}, REPLAY)["plan/decay-on-replay"] == "c"
    assert ends(REPLAY, REPLAY)["plan/ends-on-replay"] == "c"


def test_replay_share_counts_nominal_tokens(base):
    def share(steps):
        return codes(config({"a": phase(steps=35), "r": phase(**REPLAY, steps=steps),
                             "z": phase(steps=35)}, **base))  # fmt: skip

    assert share(30) == []  # exactly 30%
    assert share(31) == [("plan/replay-share", "error", None)]


def test_phase_share(base):
    def share(steps, role="generative"):
        return codes(config({"a": phase(role, steps=steps), "b": phase(steps=50)}, **base))

    assert share(50) == []
    assert share(51) == [("plan/phase-share", "warning", "a")]
    assert share(51, "foundation") == []
    assert codes(config({"only": phase()}, **base)) == []


def test_unbounded_replay(base):
    def replay(**length):
        return codes(config({"r": phase(**REPLAY, **length), "z": phase(steps=100)}, **base))

    error = [("plan/unbounded-replay", "error", "r")]
    assert replay(steps=None) == error
    assert replay(steps=None, epochs=1.0) == error
    assert replay(steps=None, epochs=1.0, max_steps=5)[:1] != error
    assert ("plan/unbounded-replay", "error", "r") not in replay(steps=5)


def test_warm_up_longer_than_first_phase(base):
    def warm(steps, scope="plan"):
        return codes(
            config(
                {"a": phase(steps=10), "b": phase(steps=10)},
                schedule=schedule("wsd", steps, 0, 0.1, scope),
                **base,
            )
        )

    assert warm(10) == []
    assert warm(11) == [("plan/warmup-longer-than-first-phase", "warning", "a")]
    assert len(warm(11, "phase")) == 2, "each phase is all warm-up"


@pytest.mark.parametrize(
    ("curve", "warns"),
    [
        (schedule("wsd", 0, 5, 0.1), True),
        (schedule("wsd", 0, 0, 0.1), False),
        (schedule("cosine", 0, 0, 0.1, "phase"), True),
        (schedule("constant", 0, 5, 0.1), False),
        (schedule("wsd", 0, 5, 1.0), False),
    ],
)
def test_decay_on_replay(base, curve, warns):
    settings = config({"a": phase(), "z": phase(**REPLAY, steps=2)}, schedule=curve, **base)
    assert (("plan/decay-on-replay", "warning", "z") in codes(settings)) is warns


def test_starts_from_scratch():
    error = [("plan/starts-from-scratch", "error", None)]
    assert codes(config({"a": phase()}, init_from="scratch")) == error
    assert codes(config({"a": phase("foundation")}, init_from="scratch")) == []


def test_schedule_couples_phases(base):
    def coupled(curve, count=2, **more):
        phases = {f"p{n}": phase(**more) for n in range(count)}
        return [c for c, _, _ in codes(config(phases, schedule=curve, **base))]

    assert coupled(schedule("cosine", 0, 0, 0.1)) == ["plan/schedule-couples-phases"]
    assert coupled(schedule("cosine", 0, 0, 0.1), count=1) == []
    assert coupled(schedule("cosine", 0, 0, 0.1, "phase")) == []
    assert coupled(schedule("wsd", 5, 5, 0.1)) == []
    own = schedule("cosine", 0, 0, 0.1)
    assert len(coupled(schedule("wsd", 0, 0, 0.1), schedule=own)) == 2


@pytest.mark.parametrize("starting", [False, True])
def test_init_missing(tmp_path, starting):
    severity = "error" if starting else "warning"
    expected = [("plan/init-missing", severity, None)]
    gone = config({"a": phase()}, init_from=str(tmp_path / "gone"))
    assert codes(gone, starting=starting) == expected
    gone.plan.init_from = None
    assert codes(gone, starting=starting) == expected
    gone.plan.init_from = "plan:foundation"
    assert codes(gone, starting=starting) == []


@pytest.mark.parametrize("starting", [False, True])
def test_data_missing(base, starting):
    settings = config({"a": phase(), "b": phase(), "c": phase()}, **base)
    missing = {"a": ["/nowhere/*.jsonl"], "b": [], "c": ["/gone.jsonl"]}
    severity = "error" if starting else "warning"
    found = findings(settings, missing=missing, starting=starting)
    assert [(f.code, f.severity, f.phase) for f in found] == [
        ("data/missing", severity, "a"),
        ("data/missing", severity, "c"),
    ]
    assert "/nowhere/*.jsonl" in found[0].message


def test_no_data_root_is_one_finding(base):
    missing = {name: [f"{UNKNOWN_ROOT}/{name}/train.*"] for name in ("a", "b")}
    (found,) = findings(config({"a": phase(), "b": phase()}, **base), missing=missing)
    assert "2 of 2 phases" in found.message and "data.root=DIR" in found.remedy


def test_data_short_shows_both_figures(base):
    settings = config({"a": phase(steps=1200, batch_size=4), "b": phase(steps=1200, batch_size=4)},
                      **base)  # fmt: skip
    # one shard held 46 steps where 1,200 were asked for
    (found,) = findings(settings, {"a": WindowCount(46 * 4, True, None, None)})
    assert (found.code, found.severity, found.phase) == ("data/short", "error", "a")
    assert "4,800 windows" in found.message and "(46 steps)" in found.message
    assert codes(settings, {"a": WindowCount(46 * 4, False, None, None)}) == [], "a lower bound"
    assert codes(settings, {"a": WindowCount(4800, True, None, None)}) == []
    settings.plan.phases["a"].data.on_short = "repeat"
    assert codes(settings, {"a": WindowCount(46 * 4, True, None, None)}) == []
    assert codes(settings, {"a": WindowCount(0, True, None, None)}) != [], "nothing to repeat"


def test_epochs_may_repeat_their_data(base):
    settings = config({"a": phase(steps=None, epochs=2.0)}, **base)
    assert codes(settings, {"a": WindowCount(3, True, None, None)}) == []


def test_ignored_findings_stay_visible():
    settings = config({"a": phase()}, init_from="scratch")
    settings.checks.ignore = ["plan/starts-from-scratch"]
    assert codes(settings) == [("plan/starts-from-scratch", "ignored", None)]
