"""One run of a plan: the loop over its phases, and what is kept of each.

A phase is claimed, entered, trained step by step, probed and saved, in this order, by `_phase`.
"""

import logging
import math
from functools import cached_property, partial
from pathlib import Path

import torch

from curriculum import objectives
from curriculum.checked import CheckedPlan, write_finished
from curriculum.config import Phase
from curriculum.data.tokenizer import load_tokenizer
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World
from curriculum.engine.export import export
from curriculum.engine.merge import average
from curriculum.engine.peak import gemm_peak, peak_memory
from curriculum.engine.saves import Saves
from curriculum.errors import RunError
from curriculum.faults import changes
from curriculum.faults.signals import Interrupted, StopRequest
from curriculum.plan.graph import merges, order, parents
from curriculum.plan.keys import merge_weights
from curriculum.progress import Progress
from curriculum.tracking.journal import START, Journal, write_inputs
from curriculum.tracking.metrics import MetricsRow
from curriculum.training.evaluations import Evaluations
from curriculum.training.finished import Finished
from curriculum.training.opening import open_engine
from curriculum.training.steps import Step, phase_work, take_steps

log = logging.getLogger(__name__)


class PlanRun:
    """One plan on its way. `step` counts the steps behind it, `phase` is the one it is in."""

    def __init__(self, plan: CheckedPlan, ranks: World, stop: StopRequest) -> None:
        self.plan, self.ranks, self.stop = plan, ranks, stop
        self.config = plan.ready
        self.phases = order(self.config.plan)
        self.objectives = objectives.build_all(self.config.plan)
        ranks.from_main(self._settle)
        self.tokenizer = load_tokenizer(self.config.model)
        opening = open_engine(plan, ranks, len(self.tokenizer))
        self.engine, self.start = opening.engine, opening.start
        self.held = opening.held  # the directory whose weights and moments the engine has
        self.finished = Finished(plan, ranks, opening)
        self.saves = Saves(
            self._checkpoints,
            ranks,
            self.config.checkpoint,
            good=next(iter(self.start.loads), None),
            damaged=self.start.damaged,
        )
        for name, directory in self.finished.ends.items():
            if directory.parent == self._checkpoints:  # the store took no copy
                self.saves.owe(directory, partial(self.finished.keep, name))
        if self.start.waiting:
            self.saves.reserve(self.engine.model, self.engine.optimizer)
        self.evaluations = Evaluations.build(
            self.config, plan.keys, self.tokenizer, self.engine.model, ranks, stop
        )
        self.step = self.start.step
        self.phase: str | None = None
        self.unsaved: tuple[str, int] | None = None  # phase and step, if newer than the last save

    def run(self) -> bool:
        """Train to the end of the plan. False if a signal asked to stop; all is saved then."""
        self.journal = Journal(
            self.config, self.plan.dry_run.budget, self.ranks.rank, self.start.journal
        )
        status = "FAILED"
        try:
            self._open()
            for name in self.start.waiting:
                if self.ranks.stop_asked(self.stop) or not self._phase(name):
                    status = "KILLED"
                    self._say_stopped()
                    return False
            self._finish()
            status = "FINISHED"
        except Interrupted:  # on every rank at the same place, after a whole step
            status = "KILLED"
            if self.unsaved is not None:
                self._save(*self.unsaved)
            self._say_stopped()
            return False
        finally:
            self.saves.close()
            self.finished.release()
            self.journal.close(status)
        return True

    @property
    def _checkpoints(self) -> Path:
        return self.plan.directory / "checkpoints"

    def _settle(self) -> None:
        """Begin in the run directory, on rank 0: nothing of an earlier plan is overwritten."""
        for line in changes.settle(self.plan, self.ranks.size):
            log.warning("%s", line)
        write_inputs(self.plan.directory, self.plan.composed, self.plan.dry_run.to_json())
        self._checkpoints.mkdir(exist_ok=True)

    def _open(self) -> None:
        self.journal.open(self.plan.composed, self.plan.dry_run.table())
        suite = self.evaluations.suite
        if self.ranks.is_main:
            for line in [*self.start.notes, *suite.notes]:
                log.info("%s", line)
        if self.config.probes.at_start and not self.start.loads:
            self.evaluations.probe(suite, START, self.step, self.journal)

    def _phase(self, name: str) -> bool:
        """Train one phase from where it stands, probe it, keep it. False if asked to stop."""
        self.phase, phase = name, self.config.plan.phases[name]
        if (record := self.finished.claim(name, self.stop)) is not None:
            self.step = self.journal.reuse(name, self.plan.keys[name], record)
            if self.ranks.is_main:
                log.info("reusing %s: finished meanwhile by another run", name)
            return True
        first = self._enter(name, phase)
        self.held = None
        self.journal.begin(name, self.plan.keys[name])
        self.evaluations.evaluate(name, first, self.step, self.journal)
        if not phase.is_merge and not self._train(name, first):
            return False
        last = name == self.phases[-1]
        suite = self.evaluations.suite if last else self.evaluations.brief
        if suite is not None:
            self.evaluations.probe(suite, name, self.step, self.journal)
        self.journal.end(name, self.step, self.gemm_peak, peak_memory(self.ranks.device))
        self._save(name, phase.steps or 0, ends=True)
        self.finished.ends[name] = self._checkpoints / f"step_{self.step}"
        self.held = self.finished.place(name)
        return True

    def _enter(self, name: str, phase: Phase) -> int:
        """Bring the engine to where a phase goes on; the number of its first step to take."""
        if name in self.start.begun:
            first, directory = self.start.begun[name]
            if self.held != directory:
                self._load(directory)
            return first
        above = parents(self.config.plan)[name]
        if phase.is_merge:
            self.saves.wait()
            shares = merge_weights(phase, above)
            ends = [self.finished.end(parent) for parent in above]
            average(list(zip(ends, shares, strict=True)), self.engine.model)
        elif above:
            self._hold_end(above[0])
        if phase.is_merge or phase.optimizer_state == "reset":
            self.engine.reset_optimizer()
        return 0

    def _hold_end(self, phase: str) -> None:
        """Have the engine hold the weights and moments of the end of a finished phase."""
        if self.held not in (self.finished.place(phase), self.finished.ends[phase]):
            self.saves.wait()  # they may be on their way
            self._load(self.finished.end(phase))

    def _load(self, directory: Path) -> None:
        checkpoint.load(directory, self.engine.model, self.engine.optimizer)
        self.held = directory

    def _train(self, name: str, first: int) -> bool:
        """Take the steps of a phase, and note, save and evaluate where due. False if asked to
        stop."""
        work = phase_work(self.config, name, self.objectives[name], self.tokenizer)
        progress = Progress(name, "step", work.steps, first, shown=self.ranks.is_main)
        dropped = 0
        for taken in take_steps(work, self.engine, first, lambda: self.stop.asked):
            self.step += 1
            self.unsaved = name, taken.number
            row = _row(self.step, name, taken)
            self.journal.step(row, taken.result)
            progress.advance(1, "loss not finite" if row.loss is None else f"loss {row.loss:.4f}")
            dropped = 0 if taken.result.applied else dropped + 1
            if dropped:
                self._warn_of_dropped(row, dropped, taken.result.note)
            last = taken.number == work.steps
            if not last and (taken.result.stop or self.saves.due(taken.number)):
                self._save(name, taken.number)
            if taken.result.stop and not last:
                progress.close()
                return False
            self.evaluations.evaluate(name, taken.number, self.step, self.journal)
        progress.close()
        return True

    def _warn_of_dropped(self, row: MetricsRow, dropped: int, note: str | None) -> None:
        """Raises `RunError` after too many dropped steps in a row."""
        why = f"; {note}" if note else ""
        if self.ranks.is_main:
            log.warning(
                "%s: step %d dropped: loss or gradient norm is not finite, or nothing is trained%s",
                row.phase,
                row.phase_step,
                why,
            )
        if dropped >= self.config.engine.max_nonfinite_steps:
            self.saves.wait()
            raise RunError(
                f"phase {row.phase}, step {row.phase_step}: {dropped} steps in a row were dropped "
                f"(engine.max_nonfinite_steps): loss or gradient norm is not finite{why}; "
                f"last good checkpoint: {self.saves.good or 'none'}"
            )

    def _save(self, name: str, phase_step: int, ends: bool = False) -> None:
        """Begin to write a checkpoint; at the end of a phase it goes into the store too."""
        self.unsaved = None
        record = self.journal.state()
        meta = {
            "step": self.step,
            "phase": name,
            "phase_step": phase_step,
            "phase_end": ends,
            "key": self.plan.keys[name],
            "run": str(self.plan.directory),
            "journal": record,
        }
        self.saves.start(
            self.step,
            self.engine.model,
            self.engine.optimizer,
            meta,
            then=lambda _: self.journal.saved(record),
            owed=partial(self.finished.keep, name) if ends else None,
            before=self.journal.flush,
        )
        self.finished.release(but=name)  # the save before this one has ended, well or not

    def _finish(self) -> None:
        self._hold_end(self.phases[-1])
        final = self.plan.directory / "final"
        base = not merges(self.config.plan)
        export(self.engine.model, self.tokenizer, final, self.ranks, adapter=base)
        self.saves.wait()
        tables = self.journal.finish()
        if self.ranks.is_main:
            for line in self.saves.summary():
                log.info("%s", line)
            write_finished(self.plan, tables)
            print(f"{tables}\nfinal model: {final}", flush=True)

    @cached_property
    def gemm_peak(self) -> float:
        """Operations a second of matrix products, all ranks together. Every rank calls this."""
        own = gemm_peak(getattr(torch, self.config.engine.dtype), self.ranks.device)
        total = torch.tensor(own, dtype=torch.float64, device=self.ranks.device)
        return float(self.ranks.sum(total))

    def _say_stopped(self) -> None:
        problem = self.saves.wait()
        if not self.ranks.is_main:
            return
        if problem is None:
            log.warning(
                "stopped after step %d, everything is saved; the same command goes on from there",
                self.step,
            )
        else:
            log.warning(
                "stopped after step %d, which is not saved (%s); the same command goes on from %s",
                self.step,
                problem,
                self.saves.good or "the beginning",
            )


def _row(step: int, phase: str, taken: Step) -> MetricsRow:
    result = taken.result
    return MetricsRow(
        step=step,
        phase=phase,
        phase_step=taken.number,
        loss=result.loss if math.isfinite(result.loss) else None,
        lr=taken.rate,
        grad_norm=result.grad_norm if math.isfinite(result.grad_norm) else None,
        forward_tokens=result.forward_tokens,
        trained_tokens=result.trained_tokens,
        seconds=taken.seconds,
    )
