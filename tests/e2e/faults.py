"""Runs of the small plan as processes that can be killed: one or several ranks, started by a
`fork_server`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command import ENVIRONMENT

SECONDS = 120.0


class Server:
    """A `fork_server`, used as a context manager."""

    def __enter__(self) -> "Server":
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@dataclass
class Start:
    """One start of a run: the processes of its ranks."""

    server: Server
    pids: list[int]
    log: Path

    def error(self) -> str:
        """The only line of its kind in what was said."""
        (line,) = re.findall(r"^error: (.*)", self.text(), re.MULTILINE)
        return line

    def signal(self, number: int, rank: int = 0) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pids[rank], number)

    def wait(self, seconds: float = SECONDS) -> list[int | None]:
        """How each rank ended: a code, minus a signal, or None if it still runs."""
        return [self.wait_for(rank, seconds) for rank in range(len(self.pids))]

    def wait_for(self, rank: int, seconds: float = SECONDS) -> int | None:
        return self.server.ask(do="wait", pid=self.pids[rank], seconds=seconds)["status"]

    def end(self) -> None:
        for rank in range(len(self.pids)):
            self.signal(signal.SIGKILL, rank)
        self.wait()

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def start(
    server: Server,
    root: Path,
    arguments: list[str],
    *,
    ranks: int = 1,
    die_on: str = "",
    die_at: int | None = None,
    die_by: int = signal.SIGKILL,
    doomed: int = 0,
    log: str = "log.txt",
    **env: str,
) -> Start:
    """Start all ranks. Rank `doomed` notes its events in `events.txt` and dies at the one given."""
    said = root / log
    said.unlink(missing_ok=True)
    port = str(_free_port())
    pids = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        place |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        answer = server.ask(
            do="start",
            arguments=arguments,
            cwd=str(root),
            env=(place if ranks > 1 else {}) | env,
            log=str(said),
            events=str(root / "events.txt") if rank == doomed else None,
            die_on=die_on,
            die_at=die_at,
            die_by=die_by,
        )
        pids.append(answer["pid"])
    return Start(server, pids, said)


def wait_until(true: Any, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
