"""A plan on a stated number of ranks: what a dry run prints, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from plan_builders import config, corrective, phase

import curriculum
from curriculum.cli import main
from curriculum.compose import compose
from curriculum.errors import UserError
from curriculum.plan.budget import plan_budget
from curriculum.plan.checks import CheckContext, run_checks
from curriculum.plan.consistency import consistent
from curriculum.plan.ranks import plan_ranks
from curriculum.runner import run

PRODUCTION = ["+plan=corrective", "profile=production", "dry_run=true"]


def shown(capsys, *overrides):
    assert main(["run", *PRODUCTION, *overrides]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_nothing_changes_unless_ranks_are_stated(capsys):
    assert "ranks" not in json.loads(shown(capsys, "output=json"))
    assert "per rank" not in shown(capsys)


def test_json_of_stated_ranks(capsys):
    found = json.loads(shown(capsys, "output=json", "engine.world_size=64"))["ranks"]
    memory = found["memory"]
    assert found["parameters"] == found["trained_parameters"] == 303_552_000
    parts = ("parameters", "gradients", "optimizer", "gathered", "activations")
    assert memory["total"] == sum(memory[part] for part in parts)
    assert memory["peak"] == max(each["memory"]["peak"] for each in found["phases"])
    assert memory["optimizer"] == 2 * memory["parameters"]
    assert (found["peak_flops"], found["utilisation"]) == (989e12, 0.4)
    assert [each["micro_batches"] for each in found["phases"]] == [1] * 10
    assert found["seconds"] == found["seconds_left"] == sum(p["seconds"] for p in found["phases"])


def test_table_of_stated_ranks(capsys):
    text = shown(capsys, "engine.world_size=64", "budget.utilisation=0.25")
    for part in ("parameters", "gradients", "optimizer", "gathered", "activations", "total"):
        assert any(line.startswith(part) for line in text.splitlines())
    assert "on 64 ranks (engine.world_size), weights in 64 shards" in text
    assert "time at 25% (budget.utilisation) of 9.89e+14 FLOP/s a device" in text
    assert "64 shards are uneven" in text  # 15 experts
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_dry_run_imports_no_engine():
    code = (
        "import sys; from curriculum.cli import main; "
        f"main(['run', *{PRODUCTION}, 'engine.world_size=64']); "
        "print([m for m in ('torch', 'transformers', 'numpy', 'mlflow') if m in sys.modules])"
    )
    root = str(Path(curriculum.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": root}
    )
    assert done.stdout.splitlines()[-1] == "[]"


def on_ranks(world, **engine):
    found = corrective()
    found.model.parameters = None
    found.engine.world_size = world
    for name, value in engine.items():
        setattr(found.engine, name, value)
    return found


def test_time_follows_the_busiest_rank():
    found = compose([*PRODUCTION, "engine.world_size=24"])
    budget = plan_budget(found, {})
    phases = {each.name: each for each in plan_ranks(found, budget, {}).phases}
    rows = {row.name: row for row in budget.phases}
    speed = 989e12 * 0.4
    # 64 windows on 24 ranks: the busiest takes 3 of them; 16 windows: one rank takes one
    assert phases["causal_foundations"].seconds == pytest.approx(
        rows["causal_foundations"].flops * 3 / 64 / speed
    )
    assert phases["causal_university"].seconds == pytest.approx(
        rows["causal_university"].flops / 16 / speed
    )


def test_what_is_unknown_is_said():
    found = on_ranks(4)
    ranks = plan_ranks(found, plan_budget(found, {}), {})
    assert ranks.to_json([])["memory"] is None
    assert ranks.seconds() is None
    assert any("memory per rank is unknown: model=m; give model.path=DIR" in n for n in ranks.notes)
    assert any("budget.peak_flops" in note for note in ranks.notes)
    assert "?" in ranks.table([], 100)


def test_fewer_windows_than_ranks_is_a_finding():
    def found(world):
        settings = on_ranks(world)
        context = CheckContext(settings, plan_budget(settings, {}), {}, False)
        return [f for f in run_checks(context) if f.code == "plan/idle-ranks"]

    assert found(None) == found(16) == []
    (few,) = found(32)
    assert "3 of 10 phases" in few.message and "retrieval_university 16" in few.message
    (many,) = found(128)
    assert "10 of 10 phases" in many.message and "7 more" in many.message
    assert "use 64 ranks or fewer" in many.remedy


def test_replicas_divide_the_stated_ranks():
    consistent(on_ranks(8, replicate=4))
    with pytest.raises(UserError, match=r"engine.replicate=3: must divide engine.world_size=8"):
        consistent(on_ranks(8, replicate=3))


def test_a_run_has_as_many_ranks_as_stated(monkeypatch):
    found = config({"a": phase()})
    found.engine.world_size = 64
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        UserError, match=r"engine.world_size=64: this run has 2 processes; start 64"
    ):
        run(found)
