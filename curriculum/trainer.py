"""The loop over plans, over the phases of a plan, and over the steps of a phase."""

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from curriculum import objectives, store
from curriculum.checked import CheckedPlan, write_finished
from curriculum.config import Phase
from curriculum.data.order import window_index
from curriculum.data.tokenizer import load_tokenizer
from curriculum.data.windows import prepare
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World, world
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.export import export
from curriculum.engine.model import build_lm, check_vocabulary, wrap
from curriculum.engine.step import Engine, StepResult
from curriculum.errors import RunError
from curriculum.lineage import Origin, origin
from curriculum.plan.graph import order
from curriculum.plan.schedule import learning_rates
from curriculum.probes import ProbeSuite
from curriculum.progress import Progress
from curriculum.resume import starting_point
from curriculum.signals import StopRequest, stop_on_signal
from curriculum.tracking.journal import START, Journal, write_inputs
from curriculum.tracking.metrics import MetricsRow

log = logging.getLogger(__name__)


def train(plans: Sequence[CheckedPlan]) -> bool:
    """Train plans that build on one another, in order. False if a signal asked to stop."""
    with world(plans[0].ready.engine) as ranks, stop_on_signal() as stop:
        return all(PlanRun(plan, ranks, stop).run() for plan in plans)


class PlanRun:
    """One plan on its way: the engine, the record, the place."""

    def __init__(self, plan: CheckedPlan, ranks: World, stop: StopRequest) -> None:
        self.plan, self.ranks, self.stop = plan, ranks, stop
        self.config = plan.ready
        self.phases = order(self.config.plan)
        self.checkpoints = plan.directory / "checkpoints"
        self.objectives = {
            name: objectives.build(name, self.config.plan.phases[name]) for name in self.phases
        }
        if ranks.is_main:
            write_inputs(plan.directory, plan.composed, plan.dry_run.to_json())
            self.checkpoints.mkdir(exist_ok=True)
        ranks.barrier()
        self.tokenizer = load_tokenizer(self.config.model)
        self.start = starting_point(plan)
        self.engine = self._engine()
        self.suite = ProbeSuite.build(self.config, self.tokenizer)
        self.brief_suite = (
            ProbeSuite.brief(self.config, self.tokenizer)
            if self.config.probes.at_phase_end
            else None
        )
        self.evaluator = Evaluator(self.engine.model, ranks, self.config.probes.batch_tokens)
        self.step = self.start.step

    def run(self) -> bool:
        """Train to the end of the plan. False if a signal asked to stop; all is saved then."""
        self.journal = Journal(
            self.config, self.plan.dry_run.budget, self.ranks.rank, self.start.journal
        )
        status = "FAILED"
        try:
            self._open()
            for name in self.phases[self.start.phase :]:
                if self.stop_asked() or not self._phase(name):
                    status = "KILLED"
                    self._say_stopped()
                    return False
            self._finish()
            status = "FINISHED"
        finally:
            self.journal.close(status)
        return True

    def _engine(self) -> Engine:
        """The model with the weights and moments that the run starts from."""
        begin = origin(self.plan.composed)
        pretrained = begin.path if begin.kind == "pretrained" else None
        filled = self.start.directory is not None or self._initial_checkpoint(begin) is not None
        lm = build_lm(self.config.model, self.config.seed, pretrained, empty=filled)
        check_vocabulary(lm, len(self.tokenizer))
        engine = Engine(
            wrap(lm, self.config.engine, self.ranks),
            self.ranks,
            self.config.engine,
            self.config.optim,
        )
        if self.start.directory is not None:
            checkpoint.load(self.start.directory, engine.model, engine.optimizer)
        elif (weights := self._initial_checkpoint(begin)) is not None:
            checkpoint.load(weights, engine.model, None)
        return engine

    def _initial_checkpoint(self, begin: Origin) -> Path | None:
        if begin.kind == "checkpoint":
            return begin.path
        if begin.kind == "plan" and self.plan.base_key is not None:
            return Path(self.config.store.dir) / self.plan.base_key
        return None

    def _open(self) -> None:
        self.journal.open(self.plan.composed, self.plan.dry_run.table())
        if self.ranks.is_main:
            for line in [*self.start.notes, *self.suite.notes]:
                log.info("%s", line)
        if self.config.probes.at_start and not self.journal.before:
            self._probe(self.suite, START, self.step)

    def _phase(self, name: str) -> bool:
        """Train one phase from where it stands, probe it, keep it. False if asked to stop."""
        phase = self.config.plan.phases[name]
        first = self.start.phase_step if name == self.phases[self.start.phase] else 0
        if first == 0 and phase.optimizer_state == "reset":
            self.engine.reset_optimizer()
        self.journal.begin(name)
        if not self._steps(name, phase, first):
            return False
        if name == self.phases[-1]:
            self._probe(self.suite, name, self.step)
        elif self.brief_suite is not None:
            self._probe(self.brief_suite, name, self.step)
        self.journal.end(name, self.step)
        saved = self._save(name, phase.steps or 0)
        if self.ranks.is_main:
            store.keep(Path(self.config.store.dir), self.plan.keys[name], saved)
        self.ranks.barrier()
        return True

    def _steps(self, name: str, phase: Phase, first: int) -> bool:
        """Steps `first` and on of a phase; position in its data is step x batch_size."""
        assert phase.steps is not None
        needed = phase.steps * phase.batch_size
        windows = prepare(self.config, name, "train", self.tokenizer, needed)
        micro, rates = self._micro_batch_size(phase), learning_rates(self.config, name)
        progress = Progress(name, "step", phase.steps, first, shown=self.ranks.is_main)
        dropped = 0
        for phase_step in range(first, phase.steps):
            began = time.perf_counter()
            position = phase_step * phase.batch_size
            batch = [
                windows[window_index(position + i, len(windows), self.config.seed, name)]
                for i in range(phase.batch_size)
            ]
            torch.manual_seed(stream(self.config.seed, name, phase_step, self.ranks.rank))
            rate = rates(phase_step)
            result = self.engine.step(
                self.engine.micro_batches(batch, micro),
                self.objectives[name],
                rate,
                stop=self.stop.asked,
            )
            self.step += 1
            row = _row(self.step, name, phase_step + 1, rate, result, time.perf_counter() - began)
            self.journal.step(row, result.recomputed_tokens, result.applied)
            progress.advance(1, "loss not finite" if row.loss is None else f"loss {row.loss:.4f}")
            dropped = 0 if result.applied else dropped + 1
            self._check_finite(row, dropped)
            last = phase_step + 1 == phase.steps
            if not last and (
                result.stop or (phase_step + 1) % self.config.checkpoint.every_steps == 0
            ):
                self._save(name, phase_step + 1)
            if result.stop and not last:
                progress.close()
                return False
        progress.close()
        return True

    def _micro_batch_size(self, phase: Phase) -> int:
        """Windows of a micro-batch: as said, or as many as `engine.micro_batch_tokens` holds."""
        if phase.micro_batch_size is not None:
            return phase.micro_batch_size
        texts = 1 if phase.retrieval is None else 1 + phase.retrieval.documents
        return max(1, self.config.engine.micro_batch_tokens // (phase.seq_len * texts))

    def _check_finite(self, row: MetricsRow, dropped: int) -> None:
        if dropped and self.ranks.is_main:
            log.warning(
                "%s: step %d dropped: loss or gradient norm is not finite, or no token is trained",
                row.phase,
                row.phase_step,
            )
        if dropped >= self.config.engine.max_nonfinite_steps:
            good = store.step_directories(self.checkpoints)
            raise RunError(
                f"phase {row.phase}, step {row.phase_step}: {dropped} steps in a row were dropped "
                "(engine.max_nonfinite_steps): loss or gradient norm is not finite; "
                f"last good checkpoint: {good[-1] if good else 'none'}"
            )

    def _probe(self, suite: ProbeSuite, name: str, step: int) -> None:
        began = time.perf_counter()
        results = suite.run(self.evaluator)
        self.journal.probed(results, name, step, time.perf_counter() - began)

    def _save(self, name: str, phase_step: int) -> Path:
        directory = self.checkpoints / f"step_{self.step}"
        meta = {
            "step": self.step,
            "phase": name,
            "phase_step": phase_step,
            "key": self.plan.keys[name],
            "run": str(self.plan.directory),
            "journal": self.journal.state(),
        }
        checkpoint.save(directory, self.engine.model, self.engine.optimizer, meta, self.ranks)
        if self.ranks.is_main:
            store.rotate(self.checkpoints, self.config.checkpoint.keep_last)
        self.journal.saved()
        return directory

    def _finish(self) -> None:
        final = self.plan.directory / "final"
        export(self.engine.model, self.tokenizer, final, self.ranks)
        tables = self.journal.finish()
        if self.ranks.is_main:
            write_finished(self.plan, tables)
            print(f"{tables}\nfinal model: {final}", flush=True)

    def stop_asked(self) -> bool:
        """The same answer on every rank."""
        asked = torch.tensor(float(self.stop.asked), device=self.ranks.device)
        return bool(self.ranks.sum(asked) > 0)

    def _say_stopped(self) -> None:
        if self.ranks.is_main:
            log.warning(
                "stopped after step %d, everything is saved; the same command goes on from there",
                self.step,
            )


def _row(
    step: int, name: str, phase_step: int, rate: float, result: StepResult, seconds: float
) -> MetricsRow:
    return MetricsRow(
        step=step,
        phase=name,
        phase_step=phase_step,
        loss=result.loss if math.isfinite(result.loss) else None,
        lr=rate,
        grad_norm=result.grad_norm if math.isfinite(result.grad_norm) else None,
        forward_tokens=result.forward_tokens,
        trained_tokens=result.trained_tokens,
        seconds=seconds,
    )


def stream(seed: int, phase: str, step: int, rank: int) -> int:
    """Seed of the random stream of one step on one rank."""
    text = f"{seed}/{phase}/{step}/{rank}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
