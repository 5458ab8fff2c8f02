"""Everything a run writes down while it trains, in one place.

Figures of a step go to `metrics.jsonl`, the ledger and the tracker; results of probes to files, the
tracker and the report. Every rank keeps the ledger, since checkpoints are made on all of them; only
rank 0 writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from curriculum.config import Config
from curriculum.files import write_json
from curriculum.plan.budget import Budget
from curriculum.plan.flops import model_size, training_flops
from curriculum.probes import ProbeResult, storage
from curriculum.tracking.ledger import Ledger, share_metrics
from curriculum.tracking.metrics import MetricsLog, MetricsRow, read_metrics, step_metrics
from curriculum.tracking.report import end_tables, write_html
from curriculum.tracking.tracker import open_tracker

START = "start"


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
            self._metrics.cut(state.get("step", 0))

    def open(self, composed: Config, dry_run_table: str) -> None:
        """Hand configuration and budget to the tracker."""
        self._tracker.start_plan(
            asdict(composed),
            [self._directory / "config.yaml", self._directory / "dry_run.json"],
            {"dry_run.txt": dry_run_table},
        )

    def begin(self, phase: str) -> None:
        settings = self._config.plan.phases[phase]
        self.ledger.begin(phase, settings.role, settings.objective_name)
        self._tracker.start_phase(phase, settings.role, settings.objective_name)

    def step(self, row: MetricsRow, recomputed_tokens: int, applied: bool) -> None:
        """Write down one optimizer step."""
        settings = self._config.plan.phases[row.phase]
        head_rows = 0 if settings.objective_name == "retrieval" else row.trained_tokens
        self.ledger.step(
            row.phase,
            nominal_tokens=settings.batch_size * settings.seq_len,
            forward_tokens=row.forward_tokens,
            trained_tokens=row.trained_tokens,
            seconds=row.seconds,
            flops=training_flops(self._size, row.forward_tokens, head_rows, settings.seq_len),
            recomputed_tokens=recomputed_tokens,
            skipped=not applied,
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
        storage.write(results, self._directory / "probes" / f"{phase}_{step}")
        self._tracker.log_plan(
            {
                f"probe/{result.name}/{name}": value
                for result in results
                for name, value in result.values.items()
            },
            step,
        )

    def end(self, phase: str, step: int) -> None:
        self.ledger.finish(phase)
        self._tracker.log_plan(share_metrics(self.ledger), step)
        self._tracker.end_phase()

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold to continue this record."""
        self._tracker.flush()  # its run ids are known once it has opened its runs
        return {
            "ledger": self.ledger.to_dict(),
            "before": [storage.to_json(result) for result in self.before],
            "after": [storage.to_json(result) for result in self.after],
            "tracker": self._tracker.ids,
        }

    def saved(self) -> None:
        """A checkpoint was committed: bring the ledger's file up to it."""
        if self._main:
            self.ledger.write(self._directory / "ledger.json")

    def finish(self) -> str:
        """Write ledger, report and tables; returns the tables."""
        tables = end_tables(self.ledger, self.before, self.after)
        if self._main:
            self.ledger.write(self._directory / "ledger.json")
            write_html(
                self._directory / "report.html",
                title=f"{self._config.plan.name}, profile {self._config.profile.name}",
                ledger=self.ledger,
                metrics=read_metrics(self._directory / "metrics.jsonl"),
                before=self.before,
                after=self.after,
            )
            self._tracker.artifact(self._directory / "report.html")
            self._tracker.artifact(self._directory / "ledger.json")
        return tables

    def close(self, status: str) -> None:
        """`FINISHED`, `FAILED`, or `KILLED` for an interrupted run."""
        self._tracker.finish(status)  # type: ignore[arg-type]
        if self._metrics is not None:
            self._metrics.close()


def write_inputs(directory: Path, composed: Config, dry_run: Mapping[str, Any]) -> None:
    """`config.yaml` (as composed) and `dry_run.json` of a run."""
    from omegaconf import OmegaConf

    from curriculum.files import write_text

    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(asdict(composed))))
    write_json(directory / "dry_run.json", dry_run)
