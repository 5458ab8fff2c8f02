"""The loop over the phases of a plan, and over the steps of a phase."""

import hashlib
import logging
import math
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import torch

from curriculum import objectives, store
from curriculum.checked import CheckedPlan, key_record, write_finished
from curriculum.choice_evals.run import ChoiceEvals
from curriculum.config import Phase
from curriculum.data.order import window_index
from curriculum.data.tokenizer import load_tokenizer
from curriculum.data.windows import prepare
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.export import export
from curriculum.engine.merge import average
from curriculum.engine.model import build_lm, check_vocabulary, wrap
from curriculum.engine.peak import gemm_peak, peak_memory
from curriculum.engine.saves import Saves
from curriculum.engine.step import Engine, StepResult
from curriculum.errors import RunError
from curriculum.faults import changes
from curriculum.faults.signals import Interrupted, StopRequest
from curriculum.lineage import Origin, origin
from curriculum.plan.graph import order, parents
from curriculum.plan.keys import merge_weights
from curriculum.plan.schedule import learning_rates
from curriculum.probes import ProbeSuite
from curriculum.progress import Progress
from curriculum.resume import agreed_start
from curriculum.store.claim import Claim
from curriculum.tracking.journal import START, Journal, write_inputs
from curriculum.tracking.metrics import MetricsRow

_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


class PlanRun:
    """One plan on its way: the engine, the record, the place."""

    def __init__(self, plan: CheckedPlan, ranks: World, stop: StopRequest) -> None:
        self.plan, self.ranks, self.stop = plan, ranks, stop
        self.config = plan.ready
        self.phases = order(self.config.plan)
        self.checkpoints = plan.directory / "checkpoints"
        self.objectives = objectives.build_all(self.config.plan)
        ranks.from_main(self._settle)
        self.tokenizer = load_tokenizer(self.config.model)
        self.refused: dict[Path, str] = {}
        self.start = agreed_start(plan, ranks, self.refused)
        self.held: Path | None = None  # the directory whose weights and moments the engine has
        self.engine = self._engine()
        self.ends = ranks.from_main(self._stored_ends)
        self.claims: dict[str, Claim] = {}
        self.saves = Saves(
            self.checkpoints,
            ranks,
            self.config.checkpoint,
            good=next(iter(self.start.loads), None),
            damaged=self.start.damaged,
        )
        with suppress(Interrupted), stop.interruptible():  # it may read and tokenize for minutes
            self.suite = ProbeSuite.build(self.config, self.tokenizer)
            self.brief_suite = (
                ProbeSuite.brief(self.config, self.tokenizer)
                if self.config.probes.at_phase_end
                else None
            )
            self.choice_evals = ChoiceEvals.build(
                self.config, plan.keys, self.tokenizer, ranks, stop
            )
        ranks.stop_together(stop)
        self.evaluator = Evaluator(self.engine.model, ranks, self.config.probes.batch_tokens, stop)
        self.step = self.start.step
        self.phase: str | None = None
        self.unsaved: tuple[str, int] | None = None  # phase and step, if newer than the last save

    def _settle(self) -> None:
        """Begin in the run directory, on rank 0: nothing of an earlier plan is overwritten."""
        for line in changes.settle(self.plan, self.ranks.size):
            log.warning("%s", line)
        write_inputs(self.plan.directory, self.plan.composed, self.plan.dry_run.to_json())
        self.checkpoints.mkdir(exist_ok=True)

    def _stored_ends(self) -> dict[str, Path]:
        """Where finished phases lie; a kill may have kept one from the store, on rank 0."""
        ends = dict(self.start.ends)
        for name, directory in ends.items():
            if directory.parent == self.checkpoints:
                with suppress(OSError, RunError):  # if it cannot be written, it stays where it is
                    ends[name] = self._store(name, directory)
        return ends

    def _release(self, but: str | None = None) -> None:
        for name, claim in self.claims.items():
            if name != but:
                claim.release()

    def _store(self, name: str, directory: Path) -> Path:
        place, key = Path(self.config.store.dir), self.plan.keys[name]
        if self.refused.pop(place / key, None) is not None:
            store.discard(place / key)  # its sizes are right, so that it would be kept
        return store.keep(place, key, directory, key_record(self.plan, name))

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
            self._release()
            self.journal.close(status)
        return True

    def _engine(self) -> Engine:
        """The model with the weights and moments that the run starts from.

        A checkpoint that turns out not to fit is refused, and the next best place taken.
        """
        while True:
            engine = self._initial_engine()
            try:
                for directory in reversed(self.start.loads):
                    self.held = directory
                    checkpoint.load(directory, engine.model, engine.optimizer, checked=True)
                return engine
            except RunError as error:
                assert self.held is not None
                self.refused[self.held] = str(error).removeprefix(f"{self.held}: ")
                self.start = agreed_start(self.plan, self.ranks, self.refused)

    def _initial_engine(self) -> Engine:
        """The model as the plan starts, or empty where the run goes on from somewhere else."""
        begin = origin(self.plan.composed)
        pretrained = begin.path if begin.kind == "pretrained" else None
        weights = None if self.start.loads else self._initial_checkpoint(begin)
        empty = weights is not None or bool(self.start.loads)
        lm = build_lm(self.config.model, self.config.seed, pretrained, empty=empty)
        check_vocabulary(lm, len(self.tokenizer))
        engine = Engine(
            wrap(lm, self.config.engine, self.ranks),
            self.ranks,
            self.config.engine,
            self.config.optim,
        )
        if weights is not None:
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
        if self.config.probes.at_start and not self.start.loads:
            self._probe(self.suite, START, self.step)

    def _phase(self, name: str) -> bool:
        """Train one phase from where it stands, probe it, keep it. False if asked to stop."""
        self.phase, phase = name, self.config.plan.phases[name]
        if not self._claimed(name):
            return True
        first = self._enter(name, phase)
        self.held = None
        self.journal.begin(name, self.plan.keys[name])
        self._choice_evals(name, first)
        if not phase.is_merge and not self._steps(name, phase, first):
            return False
        if name == self.phases[-1]:
            self._probe(self.suite, name, self.step)
        elif self.brief_suite is not None:
            self._probe(self.brief_suite, name, self.step)
        self.journal.end(name, self.step, self.gemm_peak, peak_memory(self.ranks.device))
        self._save(name, phase.steps or 0, ends=True)
        self.held = self.ends[name] = Path(self.config.store.dir) / self.plan.keys[name]
        return True

    def _claimed(self, name: str) -> bool:
        """Wait until no other run trains this phase. False if one has: its end is taken over."""
        directory, key = Path(self.config.store.dir), self.plan.keys[name]
        claim, said = Claim(directory, key), False
        while not self.config.run.fresh:
            taken, there = self.ranks.from_main(
                lambda: (claim.take(), store.finished(directory, key))
            )
            if there is not None and there not in self.refused:
                claim.release()
                self.ends[name] = there
                self.step = self.journal.reuse(name, key, store.read_meta(there)["journal"])
                if self.ranks.is_main:
                    log.info("reusing %s: finished meanwhile by another run", name)
                return False
            if taken:
                break
            if self.ranks.is_main and not said:
                log.info("phase %s is trained by another run: waiting", name)
                said = True
            self.ranks.stop_together(self.stop)
            time.sleep(_POLL_SECONDS)
        self.claims[name] = claim
        return True

    def _enter(self, name: str, phase: Phase) -> int:
        """Bring the engine to where a phase goes on; the number of its first step to take."""
        if name in self.start.begun:
            first, directory = self.start.begun[name]
            self._hold(directory)
            return first
        above = parents(self.config.plan)[name]
        if phase.is_merge:
            self.saves.wait()
            shares = merge_weights(phase, above)
            ends = [self.ends[parent] for parent in above]
            average(list(zip(ends, shares, strict=True)), self.engine.model)
        elif above:
            self._hold(self.ends[above[0]])
        if phase.is_merge or phase.optimizer_state == "reset":
            self.engine.reset_optimizer()
        return 0

    def _hold(self, directory: Path) -> None:
        """Have the engine hold the weights and moments that lie in a directory."""
        if self.held != directory:
            self.saves.wait()  # they may be on their way to it
            checkpoint.load(directory, self.engine.model, self.engine.optimizer)
            self.held = directory

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
            with self.engine.watch("data"):
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
            self.unsaved = name, phase_step + 1
            row = _row(self.step, name, phase_step + 1, rate, result, time.perf_counter() - began)
            self.journal.step(row, result)
            progress.advance(1, "loss not finite" if row.loss is None else f"loss {row.loss:.4f}")
            dropped = 0 if result.applied else dropped + 1
            self._check_finite(row, dropped, result.note)
            last = phase_step + 1 == phase.steps
            if not last and (result.stop or self.saves.due(phase_step + 1)):
                self._save(name, phase_step + 1)
            if result.stop and not last:
                progress.close()
                return False
            self._choice_evals(name, phase_step + 1)
        progress.close()
        return True

    def _micro_batch_size(self, phase: Phase) -> int:
        """Windows of a micro-batch: as said, or as many as `engine.micro_batch_tokens` holds."""
        if phase.micro_batch_size is not None:
            return phase.micro_batch_size
        texts = 1 if phase.retrieval is None else 1 + phase.retrieval.documents
        return max(1, self.config.engine.micro_batch_tokens // (phase.seq_len * texts))

    def _check_finite(self, row: MetricsRow, dropped: int, note: str | None) -> None:
        why = f"; {note}" if note else ""
        if dropped and self.ranks.is_main:
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

    def _probe(self, suite: ProbeSuite, name: str, step: int) -> None:
        began = time.perf_counter()
        results = suite.run(self.evaluator)
        self.journal.probed(results, name, step, time.perf_counter() - began)

    def _choice_evals(self, name: str, phase_step: int) -> None:
        """Those that are due where the run stands and that are not scored yet."""
        self.choice_evals.after(name, phase_step, self.step, self.evaluator, self.journal)

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

        def committed(directory: Path) -> None:
            self.journal.saved(record)
            if ends:
                self._store(name, directory)
                self.claims[name].release()

        self.saves.start(self.step, self.engine.model, self.engine.optimizer, meta, committed)
        self._release(but=name)  # the save before this one has ended, well or not

    def _finish(self) -> None:
        self._hold(self.ends[self.phases[-1]])
        final = self.plan.directory / "final"
        export(self.engine.model, self.tokenizer, final, self.ranks)
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
