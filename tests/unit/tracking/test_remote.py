"""A tracker in another process: what arrives there, and what its end does to the run."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from curriculum.tracking.remote import RemoteTracker
from curriculum.tracking.tracker import NullTracker


class Scribe(NullTracker):
    """Writes its calls to a file, and is in no hurry."""

    def __init__(self, file: Path) -> None:
        self.file, self.steps = file, 0
        self.write("made", os.getpid())

    def write(self, *what: object) -> None:
        with self.file.open("a") as out:
            print(*what, file=out)

    @property
    def ids(self) -> dict:
        return {"parent": f"after {self.steps}"}

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None:
        print("chatter")  # must not reach the results of a run
        self.write("phase", name, role, objective)

    def log(self, metrics: dict, step: int, at_ms: int | None = None) -> None:
        if step < 0:
            raise ValueError(f"step {step}")
        self.steps = step
        self.write("log", metrics, step, at_ms)

    def flush(self) -> bool:
        return self.steps > 1

    def finish(self, status: str) -> None:
        self.write("finish", status)


def pid_in(file: Path) -> int:
    until(lambda: file.is_file() and file.read_text().endswith("\n"))
    return int(file.read_text().split()[1])


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_calls_are_made_in_another_process_and_signals_to_the_run_do_not_end_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "calls"
    tracker = RemoteTracker(partial(Scribe, file))
    tracker.start_phase("qa", "generative")
    pid = pid_in(file)
    assert pid != os.getpid()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)
    tracker.log({"loss": 0.5}, 1, 77)
    assert not tracker.flush() and tracker.ids == {"parent": "after 1"}
    tracker.log({"loss": 0.25}, 2)
    assert tracker.flush() and tracker.ids == {"parent": "after 2"}
    with pytest.raises(RuntimeError, match="ValueError: step -1"):
        tracker.log({}, -1)
    tracker.finish("FINISHED")
    assert file.read_text().splitlines()[1:] == [
        "phase qa generative ",
        "log {'loss': 0.5} 1 77",
        "log {'loss': 0.25} 2 None",
        "finish FINISHED",
    ]
    assert not alive(pid)


def test_the_end_of_the_process_is_said_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = RemoteTracker(partial(Scribe, tmp_path / "calls"))
    tracker.log({}, 2)
    os.kill(pid_in(tmp_path / "calls"), signal.SIGKILL)
    tracker.log({}, 3)
    assert not tracker.flush()
    tracker.finish("FINISHED")
    assert tracker.ids == {"parent": "after 2"}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "exit code -9" in record.getMessage()


def test_it_does_not_outlive_the_run_and_says_nothing_among_its_results(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from functools import partial; from test_remote import *\n"
        "tracker = RemoteTracker(partial(Scribe, pathlib.Path(sys.argv[1])))\n"
        "tracker.start_phase('qa'); print('result', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "calls")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "result\n"
        pid = pid_in(tmp_path / "calls")
        assert alive(pid)
        run.kill()
        assert run.stdout.read() == ""
    until(lambda: not alive(pid))
