"""Trackers: where a run's figures are shown while it trains.

A tracker never stops training and never makes it wait. Calls are queued to one thread, which hands
them to the process that imports MLflow (seconds) and writes to its store (tens of milliseconds a
batch). A checkpoint waits until the figures before it have arrived, beside training, and so does
the end of a run; both for a bounded time. What training itself relies on is `metrics.jsonl` and the
ledger.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from curriculum.config import Config
from curriculum.tracking.mlflow_tracker import MlflowTracker
from curriculum.tracking.remote import RemoteTracker

Status = Literal["FINISHED", "FAILED", "KILLED"]

FLUSH_WAIT = 5.0
FINISH_WAIT = 60.0

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """One run of a plan, with one nested run a phase. No method raises for a store's fault."""

    @property
    def ids(self) -> dict[str, Any]:
        """Plain values for the checkpoint; given back to `open_tracker`, they continue the run."""

    def start_plan(
        self,
        config: Mapping[str, Any],
        files: Sequence[Path] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Open or re-open the plan's run: parameters from `config`, then artifacts: files by their
        own names, and texts under the names given."""

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None:
        """Open or re-open the phase's nested run; `log` then writes to it too."""

    def log(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        """Metrics of one global step, for the phase's run and the plan's; `at_ms` is a Unix time,
        by default now."""

    def log_plan(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        """Metrics of the plan's run alone: shares, probe values."""

    def artifact(self, path: Path) -> None:
        """Attach a file to the plan's run under its own name; replaces an earlier one."""

    def end_phase(self, status: Status = "FINISHED") -> None: ...

    def flush(self) -> bool:
        """Bring everything logged so far to the store; False if it has not arrived (in time)."""

    def finish(self, status: Status) -> None:
        """End the open phase, if any, and the plan's run, and wait for the store (bounded)."""


class NullTracker:
    """Tracks nothing: tracking is off, or this is not the first rank."""

    @property
    def ids(self) -> dict[str, Any]:
        return {}

    def start_plan(
        self,
        config: Mapping[str, Any],
        files: Sequence[Path] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None: ...

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None: ...

    def log(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None: ...

    def log_plan(
        self, metrics: Mapping[str, float], step: int, at_ms: int | None = None
    ) -> None: ...

    def artifact(self, path: Path) -> None: ...

    def end_phase(self, status: Status = "FINISHED") -> None: ...

    def flush(self) -> bool:
        return True

    def finish(self, status: Status) -> None: ...


class BackgroundTracker:
    """Runs another tracker's calls, in order, in one daemon thread."""

    def __init__(
        self, inner: Tracker, flush_wait: float = FLUSH_WAIT, finish_wait: float = FINISH_WAIT
    ) -> None:
        self._inner = inner
        self._flush_wait = flush_wait
        self._finish_wait = finish_wait
        self._late = False
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    @property
    def ids(self) -> dict[str, Any]:
        """As known by now; complete after a `flush` that returned True."""
        return self._inner.ids

    def start_plan(
        self,
        config: Mapping[str, Any],
        files: Sequence[Path] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._calls.put(lambda: self._inner.start_plan(config, files, texts))

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None:
        self._calls.put(lambda: self._inner.start_phase(name, role, objective))

    def log(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        values, at = dict(metrics), at_ms or now_ms()
        self._calls.put(lambda: self._inner.log(values, step, at))

    def log_plan(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        values, at = dict(metrics), at_ms or now_ms()
        self._calls.put(lambda: self._inner.log_plan(values, step, at))

    def artifact(self, path: Path) -> None:
        self._calls.put(lambda: self._inner.artifact(path))

    def end_phase(self, status: Status = "FINISHED") -> None:
        self._calls.put(lambda: self._inner.end_phase(status))

    def flush(self) -> bool:
        """Wait for the store; after one wait in vain, only look, until the store keeps up again."""
        arrived: list[bool] = []
        done = threading.Event()

        def flush() -> None:
            arrived.append(self._inner.flush())
            done.set()

        behind = self._late and not self._calls.empty()
        self._calls.put(flush)
        self._late = not done.wait(0 if behind else self._flush_wait)
        return bool(arrived and arrived[0])

    def finish(self, status: Status) -> None:
        self._calls.put(lambda: self._inner.finish(status))
        self._calls.put(None)
        self._thread.join(self._finish_wait)
        if self._thread.is_alive():
            log.warning(
                "tracking: the store has not answered within %g s after the end; the run goes on "
                "without it and metrics.jsonl has every step; check tracking.uri",
                self._finish_wait,
            )

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                # A tracker guards its own calls; this keeps a fault in one from ending the thread.
                log.warning("tracking: %s: %s; training goes on", type(error).__name__, error)


def open_tracker(
    config: Config,
    run_dir: Path,
    ids: Mapping[str, Any] | None = None,
    plan_name: str | None = None,
    *,
    rank: int = 0,
) -> Tracker:
    """The tracker of this process. `ids` comes from the checkpoint that the run continues.

    Only rank 0 tracks. Returns at once: MLflow is imported by another process.
    """
    if not config.tracking.enabled or rank != 0:
        return NullTracker()
    run_dir = run_dir.absolute()
    make = partial(
        MlflowTracker,
        uri=config.tracking.uri or f"sqlite:///{run_dir / 'mlflow.db'}",
        experiment=config.tracking.experiment,
        run_dir=run_dir,
        plan_name=plan_name or config.plan.name,
        flush_steps=config.tracking.flush_steps,
        ids=ids,
    )
    try:
        return BackgroundTracker(RemoteTracker(make))
    except OSError as error:
        log.warning("tracking: its process cannot be started: %s; training goes on", error)
        return NullTracker()


def now_ms() -> int:
    return int(time.time() * 1000)
