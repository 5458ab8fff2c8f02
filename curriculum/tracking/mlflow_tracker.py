"""MLflow as the tracker: one parent run for the plan, one nested run for each phase.

Only `MlflowClient` is used, never MLflow's fluent global state, so an outer active run in the same
process neither disturbs nor is disturbed.

Continuing. The checkpoint holds the run ids, and the same runs are opened again. A run that was
killed before its first checkpoint is found by the tag `curriculum.run`, which names its directory
and configuration. Steps between the checkpoint and the end of the earlier process are computed
again with equal values, so for each run and metric the steps that the store holds are not logged
again. Parameters are write-once: one that changed becomes the tag
`changed.<name>`, and the artifact `config.yaml` is the newest configuration.

Faults. Every call is guarded. The first failure is said in one line; metrics stay buffered for the
next attempt, and after a few failures in a row the tracker falls silent.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from curriculum.tracking.mlflow_store import (
    clean_name,
    fingerprint,
    flatten,
    masked,
    open_store,
)

PARENT = "mlflow.parentRunId"
BATCH_PARAMS = 100
BATCH_METRICS = 1000
GIVE_UP_AFTER = 3

log = logging.getLogger(__name__)


class _Point(NamedTuple):
    """A buffered value; `phase` None is the plan's own run."""

    phase: str | None
    key: str
    value: float
    at_ms: int
    step: int


class MlflowTracker:
    """A `tracker.Tracker` on an MLflow store; call it from one thread."""

    def __init__(
        self,
        uri: str,
        experiment: str,
        run_dir: Path,
        plan_name: str,
        flush_steps: int,
        ids: Mapping[str, Any] | None = None,
    ) -> None:
        self._uri = uri
        self._experiment = experiment
        self._run_dir = run_dir
        self._plan_name = plan_name
        self._flush_steps = flush_steps
        same_store = bool(ids) and ids.get("uri") == masked(uri)
        self._wanted: str | None = ids["parent"] if same_store else None
        self._parent: str | None = None
        self._phases: dict[str, str] = dict(ids.get("phases", {})) if same_store else {}
        self._open_phases: set[str] = set()
        self._reopened: set[str] = set()
        self._logged: dict[tuple[str, str], set[int]] = {}
        self._phase: str | None = None
        self._about: dict[str, tuple[str, str]] = {}
        self._config: Mapping[str, Any] = {}
        self._pending: list[tuple[str, Callable[[], Any]]] = []
        self._points: deque[_Point] = deque()
        self._flushed_at = 0
        self._client: Any = None
        self._failures = 0
        self._said = False

    @property
    def ids(self) -> dict[str, Any]:
        """`{uri, parent, phases}`, or empty before the store has given a run."""
        parent = self._parent or self._wanted
        if parent is None:
            return {}
        return {"uri": masked(self._uri), "parent": parent, "phases": dict(self._phases)}

    def start_plan(
        self,
        config: Mapping[str, Any],
        files: Sequence[Path] = (),
        texts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._config = config
        self._pending = [
            ("logging parameters", lambda: self._params(self._plan_run(), flatten(config))),
            *((f"storing {path.name}", self._file_action(path)) for path in files),
            *((f"storing {name}", self._text_action(name, text)) for name, text in texts.items()),
        ]
        self._set_up()

    def start_phase(self, name: str, role: str = "", objective: str = "") -> None:
        self._set_up()
        self._phase = name
        self._about[name] = (role, objective)
        self._try(f"opening the run of phase {name}", lambda: self._phase_run(name))

    def log(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        self._buffer(self._phase, metrics, step, at_ms)
        if self._phase is not None:
            self._buffer(None, metrics, step, at_ms)
        if step - self._flushed_at >= self._flush_steps or step < self._flushed_at:
            self._flushed_at = step
            self.flush()

    def log_plan(self, metrics: Mapping[str, float], step: int, at_ms: int | None = None) -> None:
        self._buffer(None, metrics, step, at_ms)

    def artifact(self, path: Path) -> None:
        self._try(f"storing {path.name}", self._file_action(path))

    def end_phase(self, status: str = "FINISHED") -> None:
        self.flush()
        name, self._phase = self._phase, None
        if name in self._open_phases:
            self._try(
                f"ending the run of phase {name}",
                lambda: self._client.set_terminated(self._phases[name], status),
            )
            self._open_phases.discard(name)

    def flush(self) -> bool:
        return not self._points or self._try("logging metrics", self._send)

    def finish(self, status: str) -> None:
        if self._phase is not None:
            self.end_phase(status)
        self.flush()
        if self._parent is not None:
            parent = self._parent
            self._try("ending the run", lambda: self._client.set_terminated(parent, status))

    def _set_up(self) -> None:
        """Open the plan's run and log what belongs to its start; what is left waits for the next
        phase if the store cannot be opened now."""
        if self._pending and self._try("opening the run", self._plan_run):
            while self._pending:
                self._try(*self._pending.pop(0))

    def _try(self, what: str, action: Callable[[], Any]) -> bool:
        """Run an action on the store; True if it succeeded. Never raises an `Exception`."""
        if self._failures >= GIVE_UP_AFTER:
            return False
        try:
            action()
        except Exception as error:
            self._failures += 1
            self._say(what, error)
            return False
        self._failures = 0
        return True

    def _say(self, what: str, error: Exception) -> None:
        if self._said:
            return
        self._said = True
        reason = masked(" ".join((str(error).strip() or repr(error)).splitlines()[:1]))
        log.warning(
            "tracking: %s at %s failed (%s: %s); training goes on, %s keeps every step, and "
            "tracking gives up after %d failures in a row; check tracking.uri=%s, or set "
            "tracking.enabled=false",
            what,
            masked(self._uri),
            type(error).__name__,
            reason,
            self._run_dir / "metrics.jsonl",
            GIVE_UP_AFTER,
            masked(self._uri),
        )

    def _plan_run(self) -> str:
        """The id of the plan's run, opened on first use."""
        if self._parent is not None:
            return self._parent
        if self._client is None:
            self._client, self._experiment_id = open_store(self._uri, self._experiment)
        run = fingerprint(str(self._run_dir), self._config)
        parent = self._alive(self._wanted) or self._unfinished(run)
        if parent is None:
            self._phases.clear()
            tags = {"curriculum.run": run, "curriculum.run_dir": str(self._run_dir)}
            parent = self._create(self._plan_name, tags)
        else:
            self._reopen(parent)
            for child in reversed(self._search(f"tags.`{PARENT}` = '{parent}'")):
                if (name := child.data.tags.get("curriculum.phase")) is not None:
                    self._phases.setdefault(name, child.info.run_id)
        self._parent = parent
        return parent

    def _phase_run(self, name: str) -> str:
        """The id of a phase's run, opened on first use."""
        parent = self._plan_run()
        if name in self._open_phases:
            return self._phases[name]
        run_id = self._alive(self._phases.get(name))
        if run_id is None:
            role, objective = self._about.get(name, ("", ""))
            tags = {PARENT: parent, "curriculum.phase": name}
            tags |= {"curriculum.role": role, "curriculum.objective": objective}
            run_id = self._create(name, tags)
        else:
            self._reopen(run_id)
        self._phases[name] = run_id
        self._open_phases.add(name)
        phases = (self._config.get("plan") or {}).get("phases") or {}
        if name in phases:
            self._params(run_id, flatten(phases[name]))
        return run_id

    def _alive(self, run_id: str | None) -> str | None:
        """`run_id` if the store holds that run and it is not deleted."""
        from mlflow.exceptions import MlflowException

        if run_id is None:
            return None
        try:
            found = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run_id if found.info.lifecycle_stage == "active" else None

    def _unfinished(self, run: str) -> str | None:
        """A run of this directory and configuration that was killed or interrupted."""
        found = self._search(f"tags.`curriculum.run` = '{run}'")
        open_runs = [r for r in found if r.info.status in ("RUNNING", "KILLED")]
        return open_runs[-1].info.run_id if open_runs else None

    def _search(self, condition: str) -> list[Any]:
        """Runs of the experiment, oldest first."""
        runs: list[Any] = []
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                condition,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            runs.extend(page)
            token = page.token
            if not token:
                return runs

    def _create(self, name: str, tags: Mapping[str, str]) -> str:
        return self._client.create_run(
            self._experiment_id, run_name=name, tags=dict(tags)
        ).info.run_id

    def _reopen(self, run_id: str) -> None:
        self._client.update_run(run_id, status="RUNNING")
        self._reopened.add(run_id)

    def _params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log what is new; a value that differs from the logged one becomes a tag."""
        from mlflow.entities import Param, RunTag

        logged: Mapping[str, str] = {}
        if run_id in self._reopened:
            logged = self._client.get_run(run_id).data.params
        new = [Param(key, value) for key, value in params.items() if key not in logged]
        changed = [
            RunTag(f"changed.{key}"[:250], value)
            for key, value in params.items()
            if logged.get(key, value) != value
        ]
        for start in range(0, len(new), BATCH_PARAMS):
            self._client.log_batch(run_id, params=new[start : start + BATCH_PARAMS])
        for start in range(0, len(changed), BATCH_PARAMS):
            self._client.log_batch(run_id, tags=changed[start : start + BATCH_PARAMS])

    def _file_action(self, path: Path) -> Callable[[], Any]:
        def store() -> None:
            run_id = self._plan_run()
            self._client.log_artifact(run_id, str(path))

        return store

    def _text_action(self, name: str, text: str) -> Callable[[], Any]:
        def store() -> None:
            run_id = self._plan_run()
            self._client.log_text(run_id, text, name)

        return store

    def _buffer(
        self, phase: str | None, metrics: Mapping[str, float], step: int, at_ms: int | None
    ) -> None:
        if self._failures >= GIVE_UP_AFTER:
            return
        at_ms = at_ms or int(time.time() * 1000)
        for key, value in metrics.items():
            # MLflow would show an infinity as 1.8e308.
            shown = float(value) if math.isfinite(value) else math.nan
            self._points.append(_Point(phase, clean_name(key), shown, at_ms, step))

    def _send(self) -> None:
        """Send the buffer, oldest first; what was sent leaves it at once, so that a failure in the
        middle sends nothing twice."""
        from mlflow.entities import Metric

        while self._points:
            phase = self._points[0].phase
            batch = [p for p in islice(self._points, BATCH_METRICS) if p.phase == phase]
            run_id = self._plan_run() if phase is None else self._phase_run(phase)
            metrics = [
                Metric(p.key, p.value, p.at_ms, p.step)
                for p in batch
                if p.step not in self._logged_steps(run_id, p.key)
            ]
            if metrics:
                self._client.log_batch(run_id, metrics=metrics)
            sent = set(map(id, batch))
            self._points = deque(p for p in self._points if id(p) not in sent)

    def _logged_steps(self, run_id: str, key: str) -> set[int]:
        """The steps that an earlier process logged."""
        if run_id not in self._reopened:
            return set()
        if (run_id, key) not in self._logged:
            history = self._client.get_metric_history(run_id, key)
            self._logged[run_id, key] = {metric.step for metric in history}
        return self._logged[run_id, key]
