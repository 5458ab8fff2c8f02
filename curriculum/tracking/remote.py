"""A tracker in a process of its own.

MLflow takes seconds to import and runs Python code at every call. In a thread of a run it would
hold the interpreter's lock meanwhile, and training would stand still; in another process it takes
another core.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from curriculum.data.workers import follow

if TYPE_CHECKING:
    from curriculum.tracking.tracker import Status, Tracker

log = logging.getLogger(__name__)


class RemoteTracker:
    """A `tracker.Tracker` that makes every call in the other process and waits for its end.

    `make` makes the tracker there: a function that can be pickled. Call this from one thread. If
    the other process ends before `finish`, that is said once, and nothing more is tracked. Raises
    `OSError` if it cannot be started.
    """

    def __init__(self, make: Callable[[], "Tracker"]) -> None:
        self._ids: dict[str, Any] = {}
        self._connection, theirs = Pipe()
        with theirs, _signals_held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # results of the run go to stdout, and nothing else
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        with suppress(OSError):  # it has ended: the first call says so
            self._connection.send(make)

    @property
    def ids(self) -> dict[str, Any]:
        """As known after the latest call."""
        return self._ids

    def start_plan(
        self,
        config: Mapping[str, Any],
        files: Sequence[Path] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._call("start_plan", config, list(files), dict(texts))

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None:
        self._call("start_phase", name, role, objective)

    def log(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        self._call("log", metrics, step, at_ms)

    def log_plan(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        self._call("log_plan", metrics, step, at_ms)

    def artifact(self, path: Path) -> None:
        self._call("artifact", path)

    def end_phase(self, status: "Status" = "FINISHED") -> None:
        self._call("end_phase", status)

    def flush(self) -> bool:
        return bool(self._call("flush"))

    def finish(self, status: "Status") -> None:
        self._call("finish", status)
        self._connection.close()
        self._process.wait()

    def _call(self, method: str, *arguments: Any) -> Any:
        """What the other process answers; None if it has ended."""
        if self._connection.closed:
            return None
        try:
            self._connection.send((method, arguments))
            answer, self._ids = self._connection.recv()
        except (OSError, EOFError):
            self._connection.close()
            log.warning(
                "tracking: its process has ended (exit code %s); training goes on, and "
                "metrics.jsonl has every step",
                self._process.wait(),
            )
            return None
        if isinstance(answer, Exception):
            raise answer
        return answer


def serve(connection: Connection) -> None:
    """Answer calls until the other end is closed."""
    tracker = connection.recv()()
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(tracker, method)(*arguments)
        except Exception as error:
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        connection.send((answer, tracker.ids))


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """A process that is started in here never sees the signals that are sent to a whole run: it
    ends when the run closes its connection, or dies."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _main(descriptor: int, parent: int) -> None:
    follow(parent)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    serve(Connection(descriptor))
    os._exit(0)  # what MLflow would tidy up ends with the process


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
