"""One run directory under a changed plan, data, or code; started twice; started anew."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_plan import RUN, command, lay_out, rows, weights
from faults import Server, start, wait_until


@pytest.fixture(scope="module")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its store and its data, and a copy of it all in `saved`."""
    root = lay_out(tmp_path_factory.mktemp("changed") / "here")
    one = start(server, root, command())
    assert one.wait() == [0], one.text()
    shutil.copytree(root, root.with_name("saved"))
    return root


@pytest.fixture
def root(finished: Path) -> Path:
    """The finished run as it was, in its own place: a run knows its checkpoints by their path."""
    shutil.rmtree(finished)
    return Path(shutil.copytree(finished.with_name("saved"), finished))


def run(server: Server, root: Path, *overrides: str) -> str:
    one = start(server, root, command(*overrides))
    assert one.wait() == [0], one.text()
    return one.text()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_changed_plan_is_named_and_what_it_replaces_is_kept(server: Server, root: Path) -> None:
    before = contents(root / RUN)
    said = run(server, root, "plan.phases.prose.lr_scale=0.5", "checkpoint.keep_last=3")
    assert "plan.phases.prose.lr_scale 1.0 -> 0.5" in said
    assert "checkpoint.keep_last 2 -> 3" in said
    kept = root / RUN / "replaced_1"
    assert str(kept) in said
    for name in ("final/model.safetensors", "finished.json", "report.html", "metrics.jsonl"):
        assert (kept / name).read_bytes() == before[name], name
    assert {name for name in before if name.startswith("checkpoints/step_15/")} == {
        str(path.relative_to(kept)) for path in (kept / "checkpoints").rglob("*") if path.is_file()
    } - {name for name in before if name.startswith("checkpoints/step_13/")}
    assert (kept / "probes/prose_15").is_dir() and (root / RUN / "probes/talk_5").is_dir()
    done = [(row["phase"], row["status"]) for row in ledger(root)]
    assert done == [("talk", "done"), ("pairs", "done"), ("prose", "done")]
    old = [json.loads(line) for line in before["metrics.jsonl"].splitlines()]
    assert [r["loss"] for r in rows(root)][:9] == [r["loss"] for r in old][:9]
    assert [r["lr"] for r in rows(root)][9:] == [r["lr"] / 2 for r in old][9:]
    again = run(server, root, "plan.phases.prose.lr_scale=0.5", "checkpoint.keep_last=3")
    assert "everything is up to date" in again
    assert not (root / RUN / "replaced_2").exists()


def ledger(root: Path) -> list[dict[str, object]]:
    return json.loads((root / RUN / "ledger.json").read_text())["rows"]


@pytest.mark.slow
def test_changed_data_is_named(server: Server, root: Path) -> None:
    old = weights(root)
    data = root / "data" / "prose.jsonl"
    data.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    said = run(server, root)
    assert "data of plan.phases.prose (prose.jsonl)" in said
    assert "talk" not in said.split("changed since")[1].splitlines()[0]
    assert weights(root) != old
    assert (root / RUN / "replaced_1/final/model.safetensors").is_file()


@pytest.mark.slow
def test_a_change_that_no_weight_feels_is_named_and_costs_nothing(
    server: Server, root: Path
) -> None:
    """An interrupted run goes on where it was; nothing is put aside."""
    shutil.rmtree(root / RUN)
    shutil.rmtree(root / "store")
    one = start(server, root, command())
    wait_until(lambda: len(rows(root)) >= 7)
    one.signal(signal.SIGKILL)
    one.wait()
    said = run(server, root, "probes.generation_records=1")
    assert "every checkpoint still counts: probes.generation_records 2 -> 1" in said
    assert "continuing after step" in said
    assert not (root / RUN / "replaced_1").exists()
    assert len(rows(root)) == 15


def test_a_fresh_start_keeps_the_old_directory_and_can_be_interrupted(
    server: Server, root: Path
) -> None:
    before = contents(root / RUN)
    fresh = command("run.fresh=true")
    dry = start(server, root, [*fresh, "dry_run=true"])
    assert dry.wait() == [0]
    assert "to run (3 phases)" in dry.text()
    one = start(server, root, fresh)
    wait_until(lambda: len(rows(root)) in range(7, 15))
    one.signal(signal.SIGKILL)
    one.wait()
    beside = root / "run.old_1"
    assert f"what lay in {root / RUN} is kept in {beside}" in one.text()
    assert contents(beside) == before
    said = run(server, root, "run.fresh=true")
    assert "continuing after step" in said and "is kept in" not in said
    assert [row["status"] for row in ledger(root)] == ["done"] * 3
    assert len(rows(root)) == 15 and weights(root) == weights_of(beside)
    run(server, root, "run.fresh=true")
    assert (root / "run.old_2/final").is_dir()
    assert "everything is up to date" in run(server, root)


def weights_of(directory: Path) -> str:
    import hashlib

    return hashlib.sha256((directory / "final/model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_fresh_start_that_was_killed_while_it_moved_ends_in_one_place(
    server: Server, root: Path
) -> None:
    before = contents(root / RUN)
    one = start(server, root, command("run.fresh=true"), die_on=r"os\.rename run/(?!\.)", die_at=3)
    assert one.wait() == [-signal.SIGKILL]
    assert contents(root / "run.old_1") != before
    run(server, root, "run.fresh=true")
    assert contents(root / "run.old_1") == before
    assert not (root / "run.old_2").exists() and len(rows(root)) == 15


def test_a_second_start_at_the_same_time_is_refused(server: Server, root: Path) -> None:
    shutil.rmtree(root / RUN)
    shutil.rmtree(root / "store")
    one = start(server, root, command())
    wait_until(lambda: len(rows(root)) >= 1)
    one.signal(signal.SIGSTOP)
    log = one.log.read_text()
    two = start(server, root, command())
    assert two.wait() == [1], two.text()
    assert f"process {one.pids[0]} on" in two.error() and "run.dir=DIR" in two.error()
    assert "preparing" not in two.text().replace(log, "")
    one.signal(signal.SIGCONT)
    assert one.wait() == [0]
    assert len(rows(root)) == 15 and not (root / RUN / "run.lock").exists()


@pytest.mark.slow
def test_the_same_error_three_times_is_not_met_a_fourth_time(server: Server, root: Path) -> None:
    shutil.rmtree(root / RUN)
    shutil.rmtree(root / "store")
    poison = ("optim.lr=1e30", "optim.max_grad_norm=null", "engine.max_nonfinite_steps=1")
    for _ in range(3):
        one = start(server, root, command(*poison))
        assert one.wait() == [1], one.text()
        assert "not finite" in one.error()
    taken = len(rows(root))
    refused = start(server, root, command(*poison))
    assert refused.wait() == [1]
    for part in ("3 starts failed alike", "not finite", "failures.jsonl", "max_same_failures"):
        assert part in refused.error()
    assert len(rows(root)) == taken
    assert run(server, root)  # with another learning rate it may begin


@pytest.mark.slow
def test_errors_of_configuration_are_never_counted(server: Server, root: Path) -> None:
    shutil.rmtree(root / RUN)
    (root / "data" / "prose_heldout.jsonl").write_text("{}\n")
    for _ in range(4):
        one = start(server, root, command())
        assert one.wait() == [1], one.text()
        assert "error: " in one.text() and "prose_heldout.jsonl" in one.text()
    assert not (root / RUN / "failures.jsonl").exists()


@pytest.mark.slow
def test_two_runs_that_need_the_same_base_train_it_once(
    server: Server, laid_out: Path, tmp_path: Path
) -> None:
    """One trains it, the other one waits; a third finds it in the store."""
    root = Path(shutil.copytree(laid_out, tmp_path / "here"))
    text = (root / "plan/faults.yaml").read_text().replace("name: faults", "name: later")
    (root / "plan/later.yaml").write_text(
        text.replace("init_from: scratch", "init_from: plan:faults")
    )
    given = [a for a in command("plan.init_from=plan:faults") if a != "plan.init_from=scratch"]
    given = [
        "+plan=later" if a == "+plan=faults" else a for a in given if not a.startswith("run.dir")
    ]
    given += ["budget.scale.steps=0.5"]
    runs = [
        start(server, root, [*given, f"run.dir=runs/later/{name}"], log=f"{name}.txt")
        for name in ("one", "two")
    ]
    for one in runs:
        assert one.wait() == [0], one.text()
    waited = ["is trained by another run: waiting" in one.text() for one in runs]
    trained = ["run.json" for _ in (root / "runs/faults").rglob("run.json")]
    assert sorted(waited) == [False, True] and len(trained) == 1
    names = ("one", "two")
    trained_by = [
        {json.loads(line)["phase"] for line in (root / f"runs/later/{name}/metrics.jsonl").open()}
        for name in names
    ]
    # their own phases are alike too: each is trained by whichever run came first
    assert not trained_by[0] & trained_by[1]
    assert trained_by[0] | trained_by[1] == {"talk", "pairs", "prose"}
    one, two = (weights_of(root / f"runs/later/{name}") for name in names)
    assert one == two


@pytest.mark.slow
def test_neither_a_tracker_nor_results_that_cannot_be_written_stop_training(
    server: Server, laid_out: Path, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    root = Path(shutil.copytree(laid_out, tmp_path / "here"))
    (root / RUN).mkdir()
    (root / RUN / "probes").write_text("a file where a directory should be")
    (root / "full").write_text("no database")
    given = [a for a in command() if a != "tracking=none"]
    one = start(server, root, [*given, f"tracking.uri=sqlite:///{root}/full/mlflow.db"])
    assert one.wait() == [0], one.text()
    assert one.text().count("tracking: ") == 1
    assert "results of probes after step 5: " in one.text()
    assert weights(root) == weights(whole(1)) and rows(root) == rows(whole(1))
