"""Run directories and stores in odd places: nowhere to write, moved, copied, linked, renamed."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from small_plan import diamond, final, phase, rows, run, run_broken_off, stored, write

from curriculum.checked import check
from curriculum.compose import compose
from curriculum.engine import saves
from curriculum.faults import aside
from curriculum.resume import starting_point

RUN = "runs/small/small"
THREE = {"a": phase(steps=3), "b": phase(steps=5), "c": phase(steps=2)}


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The diamond, finished, with a store that works."""
    root = tmp_path_factory.mktemp("branched")
    write(root, diamond())
    assert run(root) == 0
    return root


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("straight")
    write(root, THREE)
    assert run(root) == 0
    return root


def ledger(root: Path, run_dir: str = RUN) -> list[tuple[str, int, str]]:
    found = json.loads((root / run_dir / "ledger.json").read_text())["rows"]
    return [(row["phase"], row["steps"], row["status"]) for row in found]


def assert_same_end(root: Path, reference: Path, run_dir: str = RUN) -> None:
    one, two = final(root, run_dir), final(reference)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert rows(root, run_dir) == rows(reference)
    assert ledger(root, run_dir) == ledger(reference)


def test_without_a_store_branches_go_on_from_the_run_s_own_checkpoints(
    branched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Broken off in the second branch, whose parent and sibling only the run itself has kept."""
    write(tmp_path, diamond())
    (tmp_path / "store").write_text("a file")
    with caplog.at_level(logging.INFO):
        run_broken_off(tmp_path, monkeypatch, 8, "store.dir=store")
        noted = json.loads((tmp_path / RUN / "ledger.json").read_text())["rows"]
        assert [row["phase"] for row in noted][-1] in ("b", "c")  # not taken back to an older one
        caplog.clear()
        assert run(tmp_path, "store.dir=store") == 0
    assert_same_end(tmp_path, branched)
    told = [r.message for r in caplog.records if "not put into store.dir" in r.message]
    assert told and len(set(told)) == len(told) and all("make room" in line for line in told)
    assert any("kept, since store.dir took no copy" in r.message for r in caplog.records)


def test_an_end_that_nothing_could_keep_is_named_where_a_branch_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, diamond())
    real = shutil.disk_usage
    monkeypatch.setattr(saves.shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    assert run(tmp_path) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "phase a: its end could not be saved" in said and "make room in" in said
    monkeypatch.undo()
    assert run(tmp_path) == 0


def test_a_disk_that_fills_up_anywhere_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here while an edited plan puts aside what was there; nothing of it is lost."""
    write(tmp_path, {"a": phase(steps=1)})
    assert run(tmp_path) == 0
    before = final(tmp_path)

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(aside.shutil, "copy2", full)
        assert run(tmp_path, "seed=7") == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "replaced_1" in said and "No space left on device; the same command" in said
    assert all(torch.equal(final(tmp_path)[name], before[name]) for name in before)
    assert run(tmp_path, "seed=7") == 0


def broken_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fourth step of b, of which two are saved."""
    write(root, THREE)
    run_broken_off(root, monkeypatch, 7)


@pytest.mark.parametrize("how", ["moved", "copied", pytest.param("linked", marks=pytest.mark.slow)])
def test_a_directory_under_another_name_is_the_same_run(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    broken_off(tmp_path, monkeypatch)
    old, new = tmp_path / RUN, tmp_path / "b\u00e4 c"
    if how == "linked":
        new.symlink_to(old)
    else:
        shutil.copytree(old, new)
    if how == "moved":
        shutil.rmtree(old)
    given = ["run.dir='b\u00e4 c'", "store.dir=empty"]
    assert tracked(tmp_path, new, given) == (None if how == "copied" else {"id": "7"})
    target = tmp_path / "exported"
    assert command_export(tmp_path, new / "checkpoints" / "step_5", target) == 0
    assert (target / "model.safetensors").is_file()
    assert run(tmp_path, *given) == 0
    assert_same_end(tmp_path, straight, "b\u00e4 c")


def command_export(root: Path, checkpoint: Path, target: Path) -> int:
    from curriculum.cli import main

    return main(["export", str(checkpoint), str(target)])


def tracked(root: Path, run_dir: Path, given: list[str]) -> Any:
    """The ids of the tracker that the run would go on with."""
    for meta in (run_dir / "checkpoints").glob("step_*/meta.json"):
        values = json.loads(meta.read_text())
        values["journal"]["tracker"] = {"id": "7"}
        meta.write_text(json.dumps(values))
    monkey = pytest.MonkeyPatch()
    monkey.chdir(root)
    try:
        words = ["+plan=small", "profile=small", "tracking=none", *given]
        start = starting_point(check(compose(words, config_dir=str(root / "conf"))))
    finally:
        monkey.undo()
    assert start.journal is not None and start.step == 5
    for meta in (run_dir / "checkpoints").glob("step_*/meta.json"):
        values = json.loads(meta.read_text())
        values["journal"]["tracker"] = None
        meta.write_text(json.dumps(values))
    return start.journal["tracker"]


def test_an_edit_taken_back_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, THREE)
    assert run(tmp_path) == 0
    before = final(tmp_path)
    with caplog.at_level(logging.INFO):
        assert run(tmp_path, "plan.phases.b.lr_scale=0.5") == 0
    (said,) = [r.message for r in caplog.records if "changed since" in r.message]
    assert "plan.phases.b.lr_scale 1.0 -> 0.5" in said
    assert "learning rate of plan.phases.b (first 0.008 -> 0.004, last 0.01 -> 0.005)" in said
    assert any((final(tmp_path)[name] != before[name]).any() for name in before)
    run_without_a_step(tmp_path, monkeypatch)
    assert all(torch.equal(final(tmp_path)[name], before[name]) for name in before)


def run_without_a_step(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from curriculum.engine.step import Engine

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", None)
        assert run(root) == 0


def test_only_what_changed_is_named(straight: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert run(straight, "seed=7", "run.dir=seeds", "store.dir=seeds-store") == 0
        caplog.clear()
        assert run(straight, "seed=8", "run.dir=seeds", "store.dir=seeds-store") == 0
    (said,) = [r.message for r in caplog.records if "changed since" in r.message]
    named = said.partition("changed since it was trained here: ")[2]
    assert named == "the weights it starts from (plan.init_from); seed 7 -> 8"


@pytest.mark.parametrize("text", ["[]", "{"])
def test_records_that_are_none_are_as_good_as_absent(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"a": phase(steps=1)})
    directory = tmp_path / RUN
    directory.mkdir(parents=True)
    for name in ("run.json", "finished.json", "failures.jsonl", "run.lock", "ledger.json"):
        (directory / name).write_text(text + "\n")
    assert run(tmp_path) == 0
    assert ledger(tmp_path) == [("a", 1, "done")]


def test_rows_that_are_none_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"a": phase(steps=2)})
    (tmp_path / RUN).mkdir(parents=True)
    (tmp_path / RUN / "metrics.jsonl").write_text('{"step": 1}\n')
    assert run(tmp_path) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "metrics.jsonl:1: not a row of metrics" in said and "remove the line" in said


def test_a_store_keeps_what_a_run_needs_whose_directory_cannot_be_looked_at(
    straight: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of another user. A link to itself can be looked at by nobody."""
    runs = straight / ".curriculum/store/.use/runs"
    keys = [path.name for path in stored(straight).values()]
    (straight / "loop").symlink_to("loop")
    shutil.rmtree(runs)
    runs.mkdir()
    (runs / "other.json").write_text(json.dumps({"run": str(straight / "loop"), "keys": keys}))
    from curriculum.cli import main

    place = f"store.dir={straight / '.curriculum/store'}"
    assert main(["store", "gc", place, "output=json", "dry_run=false"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == []
    assert len(stored(straight)) == 3
