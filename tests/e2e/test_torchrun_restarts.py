"""The real `torchrun`: a dead rank is replaced and the run goes on; a wrong command is not tried
again."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ENVIRONMENT
from fault_plan import RUN, TOTAL, command, committed, lay_out, rows, weights
from faults import wait_until

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def torchrun(root: Path, *options: str, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, *options, "-m", "curriculum", *arguments],
        cwd=root,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def worker(launcher: int, rank: int) -> int | None:
    """The process of one rank."""
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            place = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if status[1] == str(launcher) and f"RANK={rank}".encode() in place:
            return int(entry.name)
    return None


@pytest.mark.slow
def test_a_dead_rank_is_replaced_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    whole = lay_out(tmp_path / "whole")
    running = torchrun(whole, arguments=command())
    said, _ = running.communicate(timeout=200)
    assert running.returncode == 0, said

    root = lay_out(tmp_path / "here")
    running = torchrun(root, "--max-restarts", "2", arguments=command())
    for rank, step in ((1, 2), (0, 9)):
        wait_until(lambda step=step: max([0, *committed(root)]) >= step)
        found = worker(running.pid, rank)
        assert found is not None
        os.kill(found, signal.SIGKILL)
        wait_until(lambda old=found, rank=rank: worker(running.pid, rank) not in (None, old), 60)
    said, _ = running.communicate(timeout=200)
    assert running.returncode == 0, said
    assert said.count("continuing after step") == 2
    assert weights(root) == weights(whole)
    assert rows(root) == rows(whole) and len(rows(root)) == TOTAL


@pytest.mark.slow
def test_a_stop_reaches_every_rank_and_a_start_beside_it_is_refused(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "here")
    long = ("plan.phases.prose.steps=2000", "plan.phases.prose.data.on_short=repeat")
    running = torchrun(root, arguments=command(*long))
    wait_until(lambda: len(rows(root)) >= 2)
    beside = torchrun(root, arguments=command())
    said, _ = beside.communicate(timeout=100)
    assert beside.returncode == 1
    assert re.search(r"error: .*of torchrun \d+ on .*trains here", said), said
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=60)
    assert time.monotonic() - began < 30, said
    assert "the same command goes on" in said
    last = rows(root)[-1]["step"]
    assert (root / RUN / "checkpoints" / f"step_{last}" / "COMMITTED").is_file()
    assert not (root / RUN / "run.lock").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("optim.lr=never", "optim.lr='never'"),
        ("plan.phases.talk.data.sources=[data/none.jsonl]", "data/missing"),
    ],
)
def test_a_wrong_configuration_is_not_tried_again(tmp_path: Path, wrong: str, message: str) -> None:
    root = lay_out(tmp_path / "here")
    running = torchrun(root, "--max-restarts", "5", arguments=command(wrong))
    said, _ = running.communicate(timeout=200)
    assert running.returncode != 0
    tries = [line for line in said.splitlines() if message in line and "error" in line]
    assert 1 <= len(tries) <= 2, said  # one for each rank
