import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from curriculum.faults import run_lock
from curriculum.faults.run_lock import Held, Holder, Process, RunLock, held, process

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that lives."""
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield running
    running.kill()
    running.wait()


def write(directory: Path, **fields: Any) -> None:
    """A record by somebody else: a process that is alive, unless `fields` say otherwise."""
    directory.mkdir(exist_ok=True)
    mine = RunLock(directory, None).holder
    record = replace(mine, token="theirs", **fields)
    (directory / "run.lock").write_text(json.dumps(asdict(record)))


def test_a_lock_is_there_while_it_is_held_and_leaves_nothing(tmp_path: Path) -> None:
    with held(tmp_path / "run", None) as (lock, note):
        assert note is None
        record = json.loads((tmp_path / "run/run.lock").read_text())
        assert record["worker"]["pid"] == os.getpid()
        lock.confirm()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_stays(tmp_path: Path) -> None:
    with held(tmp_path / "run", None):
        (tmp_path / "run/config.yaml").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_a_living_process_keeps_its_lock(tmp_path: Path, other: Any) -> None:
    write(tmp_path, worker=process(other.pid))
    with pytest.raises(Held, match=f"process {other.pid} on .*run.dir=DIR") as refused:
        RunLock(tmp_path, 600).acquire()
    assert "\n" not in str(refused.value)
    assert json.loads((tmp_path / "run.lock").read_text())["token"] == "theirs"


def test_a_dead_process_loses_it_and_that_is_said(tmp_path: Path, other: Any) -> None:
    write(tmp_path, worker=process(other.pid))
    other.kill()
    other.wait()
    note = RunLock(tmp_path, None).acquire()
    assert note is not None and f"process {other.pid}" in note and "has ended" in note


def test_a_process_that_ended_and_was_not_waited_for_is_dead(tmp_path: Path, other: Any) -> None:
    write(tmp_path, worker=process(other.pid))
    other.kill()
    end = time.monotonic() + 10
    while process(other.pid) is not None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert Path(f"/proc/{other.pid}").exists()  # a zombie, until it is waited for
    assert RunLock(tmp_path, None).acquire() is not None


def test_a_process_with_the_id_of_a_dead_one_is_another(tmp_path: Path, other: Any) -> None:
    there = process(other.pid)
    assert there is not None
    write(tmp_path, worker=replace(there, started=str(int(there.started) - 1)))
    assert RunLock(tmp_path, None).acquire() is not None
    write(tmp_path, worker=replace(there, boot="an earlier boot"))
    assert RunLock(tmp_path, None).acquire() is not None


def test_another_host_is_believed_until_it_has_been_silent_for_long(tmp_path: Path) -> None:
    dead = Process(99999999, "1", "boot")
    write(tmp_path, host="elsewhere/pid:[1]", worker=dead)
    with pytest.raises(Held, match=r"on elsewhere.*delete .*run\.lock.*after 600 s"):
        RunLock(tmp_path, 600).acquire()
    past = time.time() - 700
    os.utime(tmp_path / "run.lock", (past, past))
    with pytest.raises(Held):
        RunLock(tmp_path, None).acquire()
    note = RunLock(tmp_path, 600).acquire()
    assert note is not None and "on elsewhere" in note


def test_a_beat_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(tmp_path / "run", 600) as (lock, _):
        past = time.time() - 700
        os.utime(lock.path, (past, past))
        lock.beat()  # too early
        assert time.time() - lock.path.stat().st_mtime > 600
        monkeypatch.setattr(run_lock, "_BEAT_SECONDS", 0.0)
        lock.beat()
        assert time.time() - lock.path.stat().st_mtime < 60


def test_torchrun_stays_the_holder_while_it_starts_its_workers_again(
    tmp_path: Path, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Process(99999999, "1", "boot")
    write(tmp_path, worker=dead, launcher=process(other.pid))
    with pytest.raises(Held, match=f"torchrun {other.pid}"):
        RunLock(tmp_path, 600).acquire()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # now this process's parent is a torchrun
    with pytest.raises(Held):
        RunLock(tmp_path, 600).acquire()
    write(tmp_path, worker=dead, launcher=process(os.getppid()))
    assert RunLock(tmp_path, 600).acquire() is None


def test_a_worker_that_outlives_its_torchrun_keeps_the_lock(tmp_path: Path, other: Any) -> None:
    write(tmp_path, worker=process(other.pid), launcher=Process(99999999, "1", "boot"))
    with pytest.raises(Held):
        RunLock(tmp_path, 600).acquire()


@pytest.mark.parametrize(
    ("job", "restarts", "free"), [("7", "1", True), ("7", "0", False), ("8", "1", False)]
)
def test_a_job_that_slurm_starts_again_is_not_kept_out_by_its_earlier_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, restarts: str, free: bool
) -> None:
    write(tmp_path, host="node1/pid:[1]", job="7 0")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    if free:
        note = RunLock(tmp_path, 600).acquire()
        assert note is not None and "taken over from" in note
    else:
        with pytest.raises(Held, match="on node1"):
            RunLock(tmp_path, 600).acquire()


def test_a_lock_that_was_taken_over_is_noticed(tmp_path: Path) -> None:
    with held(tmp_path, None) as (lock, _):
        write(tmp_path)
        with pytest.raises(Held, match="only one trains here"):
            lock.confirm()
    assert (tmp_path / "run.lock").exists()  # it is not ours to remove


def test_of_many_that_meet_at_a_stale_lock_one_gets_it(tmp_path: Path) -> None:
    """All wait for one file, then try at once, and stay until all have tried."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from curriculum.faults.run_lock import Held, RunLock\n"
        "here, name = Path(sys.argv[1]), sys.argv[2]\n"
        "(here / f'ready{name}').touch()\n"
        "while not (here / 'go').exists(): pass\n"
        "try:\n"
        "    RunLock(here / 'run', None).acquire(); print('won')\n"
        "except Held: print('lost')\n"
        "(here / f'tried{name}').touch()\n"
        "while not (here / 'end').exists(): time.sleep(0.01)\n"
    )
    write(tmp_path / "run", worker=Process(99999999, "1", "boot"))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(n)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(5)
    ]
    for sign, names in (("go", "ready*"), ("end", "tried*")):
        end = time.monotonic() + 60
        while len(list(tmp_path.glob(names))) < len(racers):
            assert time.monotonic() < end
            time.sleep(0.01)
        (tmp_path / sign).touch()
    said = sorted(racer.communicate(timeout=60)[0].strip() for racer in racers)
    assert said == ["lost"] * 4 + ["won"]


def test_a_record_of_another_form_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_text('{"pid": 1}')
    assert run_lock.read(tmp_path / "run.lock") is None
    assert RunLock(tmp_path, None).acquire() is None
    assert isinstance(run_lock.read(tmp_path / "run.lock"), Holder)
