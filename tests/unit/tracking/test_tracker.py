"""The tracker's thread: training does not wait, order is kept, faults and delays are bounded."""

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from curriculum.config import Config
from curriculum.tracking.tracker import BackgroundTracker, NullTracker, open_tracker


class Recorder(NullTracker):
    """Writes down its calls; `gate` holds it back as a slow store would."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.gate = threading.Event()
        self.gate.set()

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None:
        self.gate.wait()
        self.calls.append(("phase", name, role, objective))

    def log(self, metrics: dict, step: int, at_ms: int | None = None) -> None:
        if step < 0:
            raise ValueError(step)
        self.gate.wait()
        self.calls.append(("log", dict(metrics), step))
        self.at_ms = at_ms

    def finish(self, status: str) -> None:
        self.gate.wait()
        self.calls.append(("finish", status))


def config(enabled: bool = True) -> Config:
    tracking = SimpleNamespace(enabled=enabled, uri=None, experiment="curriculum", flush_steps=2)
    return SimpleNamespace(tracking=tracking, plan=SimpleNamespace(name="corrective"))


def test_calls_keep_their_order_and_values() -> None:
    inner = Recorder()
    tracker = BackgroundTracker(inner)
    values = {"loss": 1.0}
    tracker.start_phase("qa", "generative", "generative")
    tracker.log(values, 1)
    values["loss"] = 2.0
    tracker.log(values, 2)
    assert tracker.flush()
    assert inner.calls == [
        ("phase", "qa", "generative", "generative"),
        ("log", {"loss": 1.0}, 1),
        ("log", {"loss": 2.0}, 2),
    ]
    tracker.finish("KILLED")
    assert inner.calls[-1] == ("finish", "KILLED")


def test_a_slow_store_delays_training_by_one_bounded_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = Recorder()
    inner.gate.clear()
    tracker = BackgroundTracker(inner, flush_wait=0.3, finish_wait=0.3)
    start = time.monotonic()
    before = time.time()
    tracker.start_phase("qa")
    for step in range(1000):
        tracker.log({"loss": 1.0}, step)
    assert time.monotonic() - start < 0.2
    assert not any([tracker.flush() for _ in range(20)])
    assert time.monotonic() - start < 1.0
    logged = time.time()
    inner.gate.set()
    time.sleep(0.2)
    assert tracker.flush()
    assert len(inner.calls) == 1001
    assert before * 1000 - 1 <= inner.at_ms <= logged * 1000  # the time of the step, not of sending
    inner.gate.clear()
    tracker.log({"loss": 1.0}, 1000)
    start = time.monotonic()
    tracker.finish("FINISHED")
    assert time.monotonic() - start < 1.0
    (record,) = caplog.records
    assert "metrics.jsonl" in record.getMessage()
    inner.gate.set()


def test_a_fault_in_a_tracker_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    inner = Recorder()
    tracker = BackgroundTracker(inner)
    tracker.log({"loss": 1.0}, -1)
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("FINISHED")
    assert inner.calls == [("log", {"loss": 1.0}, 1), ("finish", "FINISHED")]
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_only_rank_0_of_an_enabled_run_tracks(tmp_path: Path) -> None:
    assert isinstance(open_tracker(config(enabled=False), tmp_path), NullTracker)
    for rank in (1, 2, 3):
        assert isinstance(open_tracker(config(), tmp_path, rank=rank), NullTracker)
    assert list(tmp_path.iterdir()) == []


def test_a_run_through_the_door_lands_in_its_own_directory(run_dir: Path) -> None:
    tracker = open_tracker(config(), run_dir, {})
    tracker.start_plan({"seed": 1}, texts={"dry_run.txt": "a table"})
    tracker.start_phase("qa", "generative", "generative")
    for step in (1, 2, 3):
        tracker.log({"loss": 1.0}, step)
    patience = time.monotonic() + 60  # another process imports MLflow first
    while not tracker.flush():
        assert time.monotonic() < patience
        time.sleep(0.1)
    ids = tracker.ids
    tracker.finish("KILLED")
    again = open_tracker(config(), run_dir, ids)
    again.start_plan({"seed": 1})
    again.start_phase("qa")
    again.log({"loss": 1.0}, 3)
    again.log({"loss": 0.5}, 4)
    again.finish("FINISHED")
    assert again.ids == ids

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run_dir / 'mlflow.db'}")
    assert client.get_run(ids["parent"]).info.run_name == "corrective"
    for run_id in (ids["parent"], ids["phases"]["qa"]):
        history = client.get_metric_history(run_id, "loss")
        assert sorted((m.step, m.value) for m in history) == [(1, 1), (2, 1), (3, 1), (4, 0.5)]
        assert client.get_run(run_id).info.status == "FINISHED"


def test_opening_a_tracker_imports_no_mlflow_in_the_callers_way() -> None:
    code = (
        "import sys, curriculum.tracking.tracker, curriculum.tracking.report, "
        "curriculum.tracking.dashboard\n"
        "print([m for m in ('mlflow', 'torch', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
