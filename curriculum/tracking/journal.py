"""Everything a run writes down while it trains, in one place.

Figures of a step go to `metrics.jsonl`, the ledger and the tracker; results of probes to files, the
tracker and the report. Every rank keeps the ledger, since checkpoints are made on all of them; only
rank 0 writes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.choice_evals.summary import summaries
from curriculum.config import Config
from curriculum.errors import RunError
from curriculum.files import write_json
from curriculum.plan.budget import Budget
from curriculum.plan.flops import model_size, training_flops
from curriculum.probes import ProbeResult, storage
from curriculum.tracking.ledger import Ledger, LedgerRow, share_metrics
from curriculum.tracking.metrics import MetricsLog, MetricsRow, read_metrics, step_metrics
from curriculum.tracking.report import end_tables, write_html
from curriculum.tracking.speed import speed_metrics
from curriculum.tracking.tracker import open_tracker

if TYPE_CHECKING:
    from curriculum.engine.step import StepResult

START = "start"

log = logging.getLogger(__name__)


class Journal:
    """The record of one run. `config` is scaled; `state` comes from the checkpoint it continues."""

    def __init__(
        self, config: Config, budget: Budget, rank: int, state: Mapping[str, Any] | None
    ) -> None:
        self._config = config
        self._directory = Path(config.run.dir)
        self._main = rank == 0
        self._size = model_size(config.model)
        state = state or {}
        self.ledger = Ledger.from_dict(state["ledger"]) if state else Ledger()
        self.ledger.planned = [asdict(phase) for phase in budget.phases]
        self.before: list[ProbeResult] = [ProbeResult(**p) for p in state.get("before", [])]
        self.after: list[ProbeResult] = [ProbeResult(**p) for p in state.get("after", [])]
        self._tracker = open_tracker(config, self._directory, state.get("tracker"), rank=rank)
        self._metrics: MetricsLog | None = None
        if self._main:
            self._metrics = MetricsLog(self._directory / "metrics.jsonl")
            self._metrics.keep(_blocks(self.ledger))

    def open(self, composed: Config, dry_run_table: str) -> None:
        """Hand configuration and budget to the tracker."""
        self._tracker.start_plan(
            asdict(composed),
            [self._directory / "config.yaml", self._directory / "dry_run.json"],
            {"dry_run.txt": dry_run_table},
        )

    def begin(self, phase: str, key: str) -> None:
        settings = self._config.plan.phases[phase]
        self.ledger.begin(phase, settings.role, settings.objective_name, key)
        self._tracker.start_phase(phase, settings.role, settings.objective_name)

    def step(self, row: MetricsRow, result: "StepResult") -> None:
        """Write down one optimizer step."""
        settings = self._config.plan.phases[row.phase]
        headless = settings.objective_name in ("retrieval", "choice")
        head_rows = 0 if headless else row.trained_tokens
        self.ledger.step(
            row.phase,
            nominal_tokens=settings.batch_size * settings.seq_len,
            forward_tokens=row.forward_tokens,
            trained_tokens=row.trained_tokens,
            seconds=row.seconds,
            flops=training_flops(self._size, row.forward_tokens, head_rows, result.example_length),
            recomputed_tokens=result.recomputed_tokens,
            skipped=not result.applied,
            times=result.times,
        )
        if self._metrics is not None:
            self._metrics.append(row)
            self._tracker.log(step_metrics(row), row.step)

    def probed(self, results: Sequence[ProbeResult], phase: str, step: int, seconds: float) -> None:
        """Keep the results of the probes that ran at the run's start or at a phase's end."""
        plain = [ProbeResult(**storage.to_json(result)) for result in results]
        if phase == START:
            self.before = plain
        else:
            self.after = plain
            self.ledger.probed(phase, seconds)
        if not self._main:
            return
        try:
            storage.write(results, self._directory / "probes" / f"{phase}_{step}")
        except (OSError, RunError) as error:
            log.warning("results of probes after step %d: %s; training goes on", step, error)
        self._tracker.log_plan(
            {
                f"probe/{result.name}/{name}": value
                for result in results
                for name, value in result.values.items()
            },
            step,
        )

    def choice_evaluated(self, phase: str, seconds: float) -> None:
        """A choice eval ran in or beside a phase; every rank notes the time it took."""
        if phase in self.ledger.rows:
            self.ledger.probed(phase, seconds)

    def choice_metrics(
        self, name: str, step: int, values: Mapping[str, Any], diagram: Path | None
    ) -> None:
        """Track what is known of a set at a step (`metrics.json`), and its reliability diagram."""
        self._tracker.log_plan(_choice_metrics(name, values), step)
        if diagram is not None:
            self._tracker.artifact(diagram)

    def end(self, phase: str, step: int, peak_flops: float, peak_memory: int) -> None:
        """A phase is trained. `peak_flops`: operations a second of matrix products, all ranks
        together; `peak_memory`: bytes of this process."""
        self.ledger.measured(phase, peak_flops, peak_memory)
        self.ledger.finish(phase)
        self._tracker.log_plan(share_metrics(self.ledger), step)
        self._tracker.log(speed_metrics(self.ledger.rows[phase]), step)
        self._tracker.end_phase()

    def reuse(self, phase: str, key: str, record: Mapping[str, Any]) -> int:
        """Take over a phase that another run finished; the number of steps behind the plan now.

        `record` is the state of the other run's journal.
        """
        rows = [LedgerRow(**row) for row in record["ledger"]["rows"] if row.get("key") == key]
        for row in rows:
            self.ledger.reuse(row)
        if not rows:  # all that is known is that it is done
            self.begin(phase, key)
            self.ledger.finish(phase, "reused")
        self.after = [ProbeResult(**result) for result in record["after"]] or self.after
        if self._metrics is not None:
            self._metrics.keep(_blocks(self.ledger))
        return sum(row.steps for row in self.ledger.rows.values())

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold to continue this record.

        The tracker's ids are those known by now: what is not among them is found by its tags.
        """
        return {
            "ledger": self.ledger.to_dict(),
            "before": [storage.to_json(result) for result in self.before],
            "after": [storage.to_json(result) for result in self.after],
            "tracker": self._tracker.ids,
        }

    def flush(self) -> None:
        """Wait, for a bounded time, until the tracker has what was written down so far."""
        self._tracker.flush()

    def saved(self, state: Mapping[str, Any]) -> None:
        """A checkpoint with this state was committed: bring the ledger's file up to it."""
        if self._main:
            write_json(self._directory / "ledger.json", state["ledger"])

    def finish(self) -> str:
        """Write ledger, report and tables; returns the tables."""
        evals = summaries(self._directory) if self._main else []
        tables = end_tables(self.ledger, self.before, self.after, evals)
        if self._main:
            self.ledger.write(self._directory / "ledger.json")
            write_html(
                self._directory / "report.html",
                title=f"{self._config.plan.name}, profile {self._config.profile.name}",
                ledger=self.ledger,
                metrics=read_metrics(self._directory / "metrics.jsonl"),
                before=self.before,
                after=self.after,
                evals=evals,
            )
            self._tracker.artifact(self._directory / "report.html")
            self._tracker.artifact(self._directory / "ledger.json")
        return tables

    def close(self, status: str) -> None:
        """`FINISHED`, `FAILED`, or `KILLED` for an interrupted run."""
        self._tracker.finish(status)  # type: ignore[arg-type]
        if self._metrics is not None:
            self._metrics.close()


def track_later(
    config: Config,
    ids: Mapping[str, Any] | None,
    scored: Sequence[tuple[str, int, Mapping[str, Any]]],
    files: Sequence[Path],
) -> None:
    """Add metrics of choice evals (set, step, values) and files to a run that is not going on.

    `ids`: the tracker's, from a checkpoint; without them there is nothing to add to.
    """
    if not ids or not scored:
        return
    directory = Path(config.run.dir)
    tracker = open_tracker(config, directory, ids)
    tracker.start_plan(asdict(config))
    for name, step, values in sorted(scored, key=lambda one: one[1]):
        tracker.log_plan(_choice_metrics(name, values), step)
    for file in files:
        tracker.artifact(file)
    tracker.finish("FINISHED" if (directory / "finished.json").is_file() else "KILLED")


def _choice_metrics(name: str, values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and k != "step"}
    return {f"choice_eval/{name}/{key}": value for key, value in numbers.items()}


def _blocks(ledger: Ledger) -> dict[str, range]:
    """Steps of the run, from 1, of each phase that it trained itself."""
    blocks, done = {}, 0
    for row in ledger.rows.values():
        if row.status != "reused":
            blocks[row.phase] = range(done + 1, done + 1 + row.steps)
        done += row.steps
    return blocks


def write_inputs(directory: Path, composed: Config, dry_run: Mapping[str, Any]) -> None:
    """`config.yaml` (as composed) and `dry_run.json` of a run."""
    from omegaconf import OmegaConf

    from curriculum.files import write_text

    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(asdict(composed))))
    write_json(directory / "dry_run.json", dry_run)
