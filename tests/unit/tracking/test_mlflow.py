"""The tracker on real MLflow stores: nesting, continuing, limits, faults, several processes."""

import logging
import math
import multiprocessing
import operator
import os
import re
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import cloudpickle
import mlflow
import pytest
from mlflow.tracking import MlflowClient

from curriculum.tracking.mlflow_store import flatten
from curriculum.tracking.mlflow_tracker import MlflowTracker
from curriculum.tracking.tracker import BackgroundTracker

PARENT = "mlflow.parentRunId"
CONFIG = {"plan": {"name": "corrective", "phases": {"qa": {"steps": 8}}}, "seed": 1}

CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(["mlflow"])
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Make = Callable[..., MlflowTracker]


class Shipped:
    """A function on its way into another process, closures and all."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._data = cloudpickle.dumps(action)

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return cloudpickle.loads, (self._data,)


def child(action: Callable[[], None]) -> BaseProcess:
    """Run `action` in a new process, forked from a clean one: this one may have threads."""
    process = CLEAN.Process(target=operator.call, args=(Shipped(action),))
    process.start()
    return process


def join(process: BaseProcess) -> int | None:
    process.join()
    return process.exitcode


def runs(directory: Path, experiment: str = "curriculum") -> list:
    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'mlflow.db'}")
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id], order_by=["attributes.start_time ASC"])


def named(directory: Path) -> dict:
    return {run.info.run_name: run for run in runs(directory)}


def steps_of(directory: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracking_uri=f"sqlite:///{directory / 'mlflow.db'}")
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, key))


def train(tracker: MlflowTracker, phase: str, first: int, last: int) -> None:
    tracker.start_phase(phase, "generative", "generative")
    for step in range(first, last + 1):
        tracker.log({"loss": 1 / step, "lr": 1e-3}, step)


def test_one_run_for_the_plan_and_one_nested_run_for_each_phase(
    make_tracker: Make, run_dir: Path, tmp_path: Path
) -> None:
    config_file = tmp_path / "config.yaml"
    config_file.write_text("seed: 1\n")
    tracker = make_tracker()
    tracker.start_plan(CONFIG, [config_file], {"dry_run.txt": "a table"})
    tracker.log_plan({"probe/perplexity/perplexity": 138.1}, 0)
    train(tracker, "qa", 1, 5)
    tracker.end_phase()
    train(tracker, "recall~2", 6, 8)
    tracker.log({"loss": math.nan, "lr": math.inf}, 9)
    tracker.log_plan({"share/realised/phase/recall~2/steps": 3 / 8}, 9)
    tracker.finish("FINISHED")

    found = named(run_dir)
    assert set(found) == {"corrective", "qa", "recall~2"}
    parent = found["corrective"]
    assert PARENT not in parent.data.tags
    assert {found[p].data.tags[PARENT] for p in ("qa", "recall~2")} == {parent.info.run_id}
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    losses = [(step, 1 / step) for step in range(1, 9)]
    assert steps_of(run_dir, found["qa"].info.run_id, "loss") == losses[:5]
    assert steps_of(run_dir, found["recall~2"].info.run_id, "loss")[:3] == losses[5:]
    assert steps_of(run_dir, parent.info.run_id, "loss")[:8] == losses
    assert math.isnan(steps_of(run_dir, parent.info.run_id, "loss")[8][1])
    assert math.isnan(steps_of(run_dir, parent.info.run_id, "lr")[8][1])
    assert parent.data.metrics["probe/perplexity/perplexity"] == 138.1
    assert parent.data.metrics["share/realised/phase/recall_2/steps"] == 3 / 8
    assert parent.data.params["plan.phases.qa.steps"] == "8"
    assert found["qa"].data.params == {"steps": "8"}
    artifacts = run_dir / "mlartifacts" / parent.info.run_id / "artifacts"
    assert (artifacts / "config.yaml").read_bytes() == config_file.read_bytes()
    assert (artifacts / "dry_run.txt").read_text() == "a table"


def test_metrics_arrive_in_batches(make_tracker: Make, run_dir: Path) -> None:
    tracker = make_tracker(flush_steps=4)
    tracker.start_plan(CONFIG)
    tracker.start_phase("qa")
    run_id = tracker.ids["phases"]["qa"]
    seen = []
    for step in range(1, 10):
        tracker.log({"loss": 1.0}, step)
        seen.append(len(steps_of(run_dir, run_id, "loss")))
    assert seen == [0, 0, 0, 4, 4, 4, 4, 8, 8]
    assert tracker.flush()
    assert len(steps_of(run_dir, run_id, "loss")) == 9


def test_an_outer_active_run_is_left_alone_and_two_jobs_follow_each_other(
    make_tracker: Make, run_dir: Path, tmp_path: Path, fresh_store: Path
) -> None:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{run_dir / 'mlflow.db'}")
    try:
        with mlflow.start_run(run_name="outer") as outer:
            for name in ("first", "second"):
                tracker = make_tracker(plan_name=name, run_dir=tmp_path / name)
                tracker.start_plan(CONFIG)
                for number in range(3):
                    train(tracker, f"{name}_{number}", 5 * number + 1, 5 * number + 5)
                    tracker.end_phase()
                tracker.finish("FINISHED")
                assert mlflow.active_run().info.run_id == outer.info.run_id
    finally:
        mlflow.set_tracking_uri(before)
    found = named(run_dir)
    assert len(found) == 8
    for name in ("first", "second"):
        assert PARENT not in found[name].data.tags
        for number in range(3):
            tags = found[f"{name}_{number}"].data.tags
            assert tags[PARENT] == found[name].info.run_id


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_killed_run_continues_in_a_new_process_with_each_step_once(
    make_tracker: Make, run_dir: Path, tmp_path: Path, checkpoint: bool
) -> None:
    """Saved at step 3, killed at step 7 of which 6 had arrived; then the same command again. Or
    killed before anything was saved."""
    ids: dict = {}

    def first() -> None:
        tracker = make_tracker(flush_steps=2)
        tracker.start_plan(CONFIG)
        train(tracker, "qa", 1, 7)
        os.kill(os.getpid(), signal.SIGKILL)

    def second() -> None:
        tracker = make_tracker(ids=ids, flush_steps=2)
        tracker.start_plan(CONFIG)
        train(tracker, "qa", 4 if checkpoint else 1, 10)
        tracker.end_phase()
        train(tracker, "planning", 11, 12)
        tracker.finish("FINISHED")

    assert join(child(first)) == -signal.SIGKILL
    (qa,) = (run for run in runs(run_dir) if run.info.run_name == "qa")
    assert steps_of(run_dir, qa.info.run_id, "loss") == [(s, 1 / s) for s in range(1, 7)]
    if checkpoint:
        # The phase's run is not in the checkpoint: it is found by its parent.
        uri = f"sqlite:///{run_dir / 'mlflow.db'}"
        ids = {"uri": uri, "parent": qa.data.tags[PARENT], "phases": {}}
    assert join(child(second)) == 0
    found = runs(run_dir)
    assert sorted(run.info.run_name for run in found) == ["corrective", "planning", "qa"]
    assert {run.info.status for run in found} == {"FINISHED"}
    for run in found:
        first_step = {"corrective": 1, "qa": 1, "planning": 11}[run.info.run_name]
        last_step = {"corrective": 12, "qa": 10, "planning": 12}[run.info.run_name]
        expected = [(s, 1 / s) for s in range(first_step, last_step + 1)]
        assert steps_of(run_dir, run.info.run_id, "loss") == expected


def test_a_changed_parameter_becomes_a_tag(
    make_tracker: Make, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = make_tracker()
    first.start_plan(CONFIG)
    first.start_phase("qa")
    first.finish("KILLED")
    assert {run.info.status for run in runs(run_dir)} == {"KILLED"}
    changed = {"plan": {"name": "corrective", "phases": {"qa": {"steps": 16}}}, "seed": 1, "new": 2}
    second = make_tracker(ids=first.ids)
    second.start_plan(changed)
    second.start_phase("qa")
    second.finish("FINISHED")
    assert caplog.records == []
    found = named(run_dir)
    assert len(found) == 2
    parent = found["corrective"].data
    assert parent.params["plan.phases.qa.steps"] == "8"
    assert parent.params["new"] == "2"
    changes = {key: value for key, value in parent.tags.items() if key.startswith("changed.")}
    assert changes == {"changed.plan.phases.qa.steps": "16"}
    assert found["qa"].data.tags["changed.steps"] == "16"


def test_a_fresh_start_after_a_finished_or_changed_run_is_a_new_run(
    make_tracker: Make, run_dir: Path
) -> None:
    for config, status in ((CONFIG, "FINISHED"), (CONFIG, "KILLED"), ({"seed": 2}, "FAILED")):
        tracker = make_tracker()
        tracker.start_plan(config)
        tracker.finish(status)
    assert [run.info.status for run in runs(run_dir)] == ["FINISHED", "KILLED", "FAILED"]


def test_ids_of_another_store_or_of_a_lost_run_start_a_new_run(
    make_tracker: Make, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"sqlite:///{run_dir / 'mlflow.db'}"
    lost = {"uri": uri, "parent": "0" * 32, "phases": {"qa": "1" * 32}}
    for ids in (lost, {"uri": "http://elsewhere", "parent": "2" * 32, "phases": {}}):
        tracker = make_tracker(ids=ids)
        tracker.start_plan(CONFIG)
        train(tracker, "qa", 1, 2)
        tracker.finish("FINISHED")
        assert tracker.ids["parent"] != ids["parent"]
    assert len(runs(run_dir)) == 4
    assert caplog.records == []


def test_sixty_phases_a_long_value_and_many_metrics_fit(
    make_tracker: Make, run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = "{% if x %}é" * 2000
    config = {
        "plan": {
            "phases": {
                f"phase_{i}": {"steps": i, "data": {"sources": ["a", "b"]}} for i in range(60)
            }
        },
        "model": {"chat_template": template, "tokenizer": None},
        "tracking": {"uri": "postgresql://me:hunter2@host/db", "api_token": "hunter2"},
    }
    config_file = tmp_path / "config.yaml"
    config_file.write_text(template)
    tracker = make_tracker(flush_steps=1000)
    tracker.start_plan(config, [config_file])
    tracker.start_phase("phase_59")
    tracker.log({f"metric_{i}": float(i) for i in range(2500)}, 1)
    tracker.finish("FINISHED")
    assert caplog.records == []
    parent = named(run_dir)["corrective"]
    params = parent.data.params
    assert len(params) == 60 * 2 + 4
    assert params["plan.phases.phase_7.data.sources"] == '["a", "b"]'
    assert params["model.tokenizer"] == "null"
    assert len(params["model.chat_template"]) == 500
    assert params["model.chat_template"].startswith(template[:400])
    assert "22000 characters" in params["model.chat_template"]
    assert "hunter2" not in str(params)
    assert len(parent.data.metrics) == 2500
    artifacts = run_dir / "mlartifacts" / parent.info.run_id / "artifacts"
    assert (artifacts / "config.yaml").read_bytes() == template.encode()


def test_two_long_values_that_differ_at_their_ends_differ_when_cut() -> None:
    a, b = (flatten({"x": "y" * 5000 + end})["x"] for end in "ab")
    assert a != b


def broken_under_a_file(tmp_path: Path) -> str:
    (tmp_path / "file").write_text("")
    return f"sqlite:///{tmp_path}/file/mlflow.db"


def broken_not_a_database(tmp_path: Path) -> str:
    (tmp_path / "mlflow.db").write_text("no database " * 100)
    return f"sqlite:///{tmp_path}/mlflow.db"


def broken_is_a_directory(tmp_path: Path) -> str:
    (tmp_path / "mlflow.db").mkdir()
    return f"sqlite:///{tmp_path}/mlflow.db"


def broken_unknown_scheme(tmp_path: Path) -> str:
    return "nonsense://me:hunter2@host"


def broken_server_down(tmp_path: Path) -> str:
    return "http://me:hunter2@127.0.0.1:9"


@pytest.mark.parametrize(
    "broken",
    [
        broken_under_a_file,
        broken_not_a_database,
        broken_is_a_directory,
        broken_unknown_scheme,
        broken_server_down,
    ],
)
def test_a_broken_store_is_said_once_and_stops_nothing(
    make_tracker: Make,
    tmp_path: Path,
    broken: Callable[[Path], str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    start = time.monotonic()
    tracker = make_tracker(uri=broken(tmp_path))
    tracker.start_plan(CONFIG, [tmp_path / "absent.yaml"], {"dry_run.txt": ""})
    tracker.log_plan({"probe/x/y": 1.0}, 0)
    for number in range(5):
        train(tracker, f"phase_{number}", 10 * number + 1, 10 * number + 10)
        tracker.end_phase()
    assert not tracker.flush() or tracker.ids == {}
    tracker.finish("FAILED")
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("curriculum")]
    assert "\n" not in line
    assert "metrics.jsonl" in line
    assert "tracking.enabled=false" in line
    assert "hunter2" not in line
    assert time.monotonic() - start < 10


def test_a_store_that_becomes_read_only_is_said_once(fresh_store: Path, tmp_path: Path) -> None:
    """As an ordinary user in a directory of another's: root may write anywhere."""
    said = tmp_path / "said.txt"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "mlflow.db").write_bytes(fresh_store.read_bytes())
        directory.chmod(0o555)

        def act() -> None:
            logging.basicConfig(filename=said, level=logging.WARNING, force=True)
            if os.geteuid() == 0:
                os.setuid(65534)
            tracker = MlflowTracker(
                f"sqlite:///{directory / 'mlflow.db'}", "x", directory, "plan", 2
            )
            tracker.start_plan(CONFIG)
            train(tracker, "qa", 1, 9)
            tracker.finish("FINISHED")

        code = join(child(act))
        directory.chmod(0o755)
    assert code == 0
    errors = said.read_text()
    assert errors.count("\n") == 1, errors
    assert re.search(r"tracking: opening the run at .* failed \(PermissionError", errors)


def test_what_was_logged_while_the_store_was_locked_arrives_later(
    make_tracker: Make, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = make_tracker(flush_steps=1000)
    tracker.start_plan(CONFIG)
    train(tracker, "qa", 1, 3)
    real = tracker._client.log_batch

    def locked(*args: object, **values: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    tracker._client.log_batch = locked
    assert not tracker.flush()
    tracker._client.log_batch = real
    train(tracker, "qa", 4, 5)
    assert tracker.flush()
    run_id = tracker.ids["phases"]["qa"]
    assert [step for step, _ in steps_of(run_dir, run_id, "loss")] == [1, 2, 3, 4, 5]
    assert len(caplog.records) == 1


def test_four_processes_meet_on_a_store_that_does_not_exist_yet(tmp_path: Path) -> None:
    shared = tmp_path / "new"
    uri = f"sqlite:///{shared / 'mlflow.db'}"

    def act(number: int) -> Callable[[], None]:
        def run() -> None:
            tracker = BackgroundTracker(
                MlflowTracker(uri, "curriculum", tmp_path / str(number), f"plan_{number}", 2)
            )
            tracker.start_plan({"number": number})
            tracker.start_phase("qa")
            for step in range(1, 6):
                tracker.log({"loss": 1 / step}, step)
            tracker.finish("FINISHED")

        return run

    assert [join(one) for one in [child(act(number)) for number in range(4)]] == [0, 0, 0, 0]
    found = runs(shared)
    expected = sorted(["qa"] * 4 + [f"plan_{number}" for number in range(4)])
    assert sorted(run.info.run_name for run in found) == expected
    assert all(run.data.metrics == {"loss": 0.2} for run in found)
    assert all(run.info.status == "FINISHED" for run in found)


def test_making_a_store_says_nothing_and_leaves_the_working_directory_alone(
    fresh_store: Path,
) -> None:
    assert fresh_store.with_name("said").read_text() == ""
    assert list(fresh_store.with_name("cwd").iterdir()) == []
