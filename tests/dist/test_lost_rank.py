"""What the other rank says when a rank's process dies, at a moment when nothing is trained yet."""

import os
import signal
import socket
import subprocess
import sys

from launch import ROOT

RANK = """
import os, signal
from curriculum.config import Engine
from curriculum.engine.distributed import world
from curriculum.errors import RunError

settings = Engine(
    dtype="float32", threads=1, micro_batch_tokens=64, head_chunk_rows=8, replicate=1,
    max_nonfinite_steps=1, timeout_seconds=60,
)
try:
    with world(settings) as ranks:
        ranks.barrier()
        if ranks.is_main:
            os.kill(os.getpid(), signal.SIGKILL)
        ranks.from_main(lambda: None)
except RunError as error:
    print(error)
"""


def test_a_rank_whose_fellow_died_says_so_in_one_line() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            cwd=ROOT,
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (_, _), (said, wrong) = (process.communicate(timeout=60) for process in processes)
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0], wrong
    assert said.startswith("rank 1: lost another rank")
    assert "Traceback" not in wrong
