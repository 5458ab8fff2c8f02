"""The printed form of a dry run."""

import pytest
from plan_builders import config, corrective, phase, schedule

from curriculum.finding import Finding
from curriculum.plan.budget import WindowCount, plan_budget
from curriculum.plan.dry_run import DryRun
from curriculum.plan.scale import scaled

DEMO = {"scale": {"steps": 0.1, "batch_size": 0.25, "seq_len": 0.125}}


def dry(settings, counts=None, findings=()):
    ready = scaled(settings)
    return DryRun(settings, ready, plan_budget(ready, counts or {}), list(findings))


def test_fits_a_hundred_columns():
    result = dry(
        corrective(schedule=schedule("wsd", 200, 600, 0.1)),
        {"rag_qa": WindowCount(57_600, False, None, None)},
        [Finding("plan/x", "error", "rag_qa", "long message " * 20, "remedy " * 30)],
    )
    lines = result.table(100).splitlines()
    assert max(map(len, lines)) <= 100
    row = next(line for line in lines if "117,964,800" in line)
    assert "26.65%" in row and "<=117,964,800" in row and ">=57,600" in row
    assert any(line.split()[:2] == ["role", "replay"] and "7.45%" in line for line in lines)


def test_shows_the_scale():
    table = dry(corrective(budget=DEMO, schedule=schedule("wsd", 200, 600, 0.1))).table()
    assert "1800 x 0.1 = 180" in table
    assert "32 x 0.25 = 8" in table
    assert "4096 x 0.125 = 512" in table
    assert "warm-up 200 x 0.1 = 20 steps" in table
    assert "655 steps" in table


def test_no_scale_no_block():
    assert " x " not in dry(corrective()).table()


@pytest.mark.parametrize(
    ("severity", "ok"), [("error", False), ("warning", True), ("ignored", True)]
)
def test_only_errors_fail(severity, ok):
    assert dry(corrective(), findings=[Finding("c", severity, None, "m", "r")]).ok is ok


def test_unknown_is_null_and_a_question_mark():
    result = dry(config({"a": phase(steps=None, epochs=1.0)}))
    assert result.to_json()["phases"][0]["steps"] is None
    assert "?" in result.table()


def test_json_shape():
    tree = dry(corrective(), findings=[Finding("c", "warning", None, "m", "r")]).to_json()
    assert list(tree) == ["plan", "profile", "phases", "totals", "findings"]
    assert set(tree["phases"][0]) == {
        "name", "role", "objective", "steps", "batch_size", "seq_len", "nominal_tokens",
        "forward_tokens", "forward_exact", "windows_needed", "windows_available", "windows_exact",
        "flops", "lr_start", "lr_end", "share", "cached",
    }  # fmt: skip
    shares = {"nominal", "forward", "flops", "steps"}
    assert set(tree["phases"][0]["share"]) == shares
    assert set(tree["totals"]) == {
        "phases", "steps", "nominal_tokens", "forward_tokens", "flops", "by_role", "by_objective",
        "left",
    }  # fmt: skip
    assert set(tree["totals"]["by_role"]["replay"]) == {
        "steps", "nominal_tokens", "forward_tokens", "flops", "share",
    }  # fmt: skip
    assert set(tree["totals"]["by_role"]["replay"]["share"]) == shares
    assert tree["findings"] == [
        {"code": "c", "severity": "warning", "phase": None, "message": "m", "remedy": "r"}
    ]


def test_cached_phases_are_marked_and_cost_nothing_more():
    result = dry(corrective()).with_cached(["rag_qa"])
    assert [row.cached for row in result.budget.phases] == [True] + [False] * 9
    left = result.to_json()["totals"]["left"]
    assert (left["phases"], left["steps"]) == (9, 6550 - 1800)
    assert left["nominal_tokens"] == 442_572_800 - 1800 * 32 * 2048
    assert left["forward_tokens"] == 462_848_000 - 1800 * 32 * 2048
    assert left["flops"] is None
    assert left["share"]["steps"] == pytest.approx(4750 / 6550)
    lines = result.table(100).splitlines()
    assert max(map(len, lines)) <= 100
    states = [line.split("  ")[-1].strip() for line in lines if " generative " in line]
    assert states.count("cached") == 1 and states.count("to run") == 4
    (row,) = [line for line in lines if line.startswith("to run (9 phases)")]
    assert "4,750" in row and "72.52%" in row and "324,608,000" in row


def test_a_merge_is_shown_without_batch_and_rates():
    phases = {
        "a": phase(steps=4),
        "b": phase(after="a", steps=6),
        "c": phase(after="a", steps=8),
        "d": {"objective": "merge", "after": ["b", "c"]},
    }
    result = dry(config(phases))
    row = next(line.split() for line in result.table().splitlines() if " merge " in line)
    assert row == ["4", "d", "generative", "merge", "0", "-", "-", "-", "-", "to", "run"]
    shown = result.to_json()
    assert shown["phases"][3]["steps"] == 0 and shown["phases"][3]["batch_size"] is None
    assert shown["phases"][3]["lr_start"] is None and shown["phases"][3]["flops"] == 0
    assert shown["totals"]["steps"] == 18
    assert shown["totals"]["nominal_tokens"] == 18 * 2 * 8
