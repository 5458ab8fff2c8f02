"""What the training loop calls after its steps: due sets are evaluated and scored, each once.

The order of a step: forwards on all ranks, `predictions.arrow`, the scorer, `metrics.json`. A
process that is killed in between does again only what is missing. A signal to stop is heeded in the
forwards and while the scorer works; nothing of an evaluation that was cut short is kept, but for
whole predictions.

A scorer runs in a thread of rank 0, so that it may take its time: meanwhile the ranks ask one
another twice a second or so whether to stop, and no collective runs into its timeout.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curriculum.choice_evals import diagram, storage
from curriculum.choice_evals.scorers import Scorer, ScorerFailed, call, facts, load_scorer
from curriculum.choice_evals.sets import EvalSet, open_sets, settings_of
from curriculum.choice_evals.storage import Origin, Predictions, State
from curriculum.choice_evals.summary import described
from curriculum.config import ChoiceEval, Config
from curriculum.engine.peak import peak_memory
from curriculum.errors import RunError
from curriculum.plan.graph import parents
from curriculum.plan.scale import phase_steps

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from curriculum.data.packed_choice import Bin
    from curriculum.engine.distributed import World
    from curriculum.engine.evaluate import Evaluator
    from curriculum.faults.signals import StopRequest
    from curriculum.tracking.journal import Journal

_POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Due:
    """One set at one step."""

    set: EvalSet
    origin: Origin
    scorer: Scorer | None
    directory: Path


class ChoiceEvals:
    """The choice evals of a run. `config` is scaled and every phase has its steps; `keys` are those
    of its phases. Every rank makes the same calls."""

    def __init__(
        self,
        config: Config,
        keys: Mapping[str, str],
        ranks: "World",
        stop: "StopRequest",
        sets: Mapping[str, EvalSet],
        scorers: Mapping[str, Scorer | None],
    ) -> None:
        self._config, self._keys = config, keys
        self._ranks, self._stop = ranks, stop
        self._sets, self._scorers = sets, scorers
        self._run_dir = Path(config.run.dir)
        self._tried: set[Origin] = set()

    @classmethod
    def build(
        cls,
        config: Config,
        keys: Mapping[str, str],
        tokenizer: "PreTrainedTokenizerFast",
        ranks: "World",
        stop: "StopRequest",
    ) -> "ChoiceEvals":
        """With sets and scorers opened and checked before anything trains.

        Reads files, but asks no other rank. Raises `UserError`, `RunError`.
        """
        found = settings_of(config)
        scorers = {phase: load_scorer(place, settings) for phase, place, settings in found}
        return cls(config, keys, ranks, stop, open_sets(config, tokenizer), scorers)

    def after(
        self, phase: str, phase_step: int, step: int, evaluator: "Evaluator", journal: "Journal"
    ) -> None:
        """Evaluate what is due once `phase_step` steps of a phase are done, 0 before its first.

        `step` counts those of the run. What was scored before is left alone, so this is called for
        the place that a run continues from, too. Raises `Interrupted`, on every rank at once.
        """
        # where one phase ends and the next begins, what failed is not tried a second time
        due = [one for one in self._due(phase, phase_step, step) if one.origin not in self._tried]
        if not due:
            return
        states: list[State] = self._ranks.from_main(
            lambda: [storage.state(one.directory, one.origin) for one in due]
        )
        for one, found in zip(due, states, strict=True):
            self._tried.add(one.origin)
            if found == "scored":
                self._ranks.from_main(lambda one=one: self._log_again(one, journal))
            else:
                self._evaluate(one, found, phase, evaluator, journal)

    def _due(self, phase: str, phase_step: int, step: int) -> Iterator[_Due]:
        names: set[str] = set()
        for place, weights in self._places(phase, phase_step):
            settings = self._config.choice_eval_of(place[0])
            if settings is None or not is_due(settings, place[1], self._steps(place[0])):
                continue
            for name in settings.sets:
                if name not in names:
                    names.add(name)
                    eval_set = self._sets[name]
                    origin = Origin(name, step, place[0], weights, eval_set.digest)
                    directory = storage.step_directory(self._run_dir, name, step)
                    yield _Due(eval_set, origin, self._scorers[place[0]], directory)

    def _places(self, phase: str, phase_step: int) -> Iterator[tuple[tuple[str, int], str]]:
        """Phases and steps of them that the present weights stand at, and a name for the weights:
        where a phase begins is where the one that it continues ended."""
        steps, name = self._steps(phase), self._keys[phase]
        if self._config.plan.phases[phase].is_merge:
            yield (phase, 0), f"{name}/end"
        elif phase_step > 0:
            yield (phase, phase_step), f"{name}/{'end' if phase_step == steps else phase_step}"
        elif above := parents(self._config.plan)[phase]:
            weights = f"{self._keys[above[0]]}/end"
            yield (above[0], self._steps(above[0])), weights
            yield (phase, 0), weights
        else:
            yield (phase, 0), f"{name}/start"

    def _steps(self, phase: str) -> int:
        return phase_steps(self._config.plan.phases[phase]) or 0

    def _evaluate(
        self, due: _Due, found: State, phase: str, evaluator: "Evaluator", journal: "Journal"
    ) -> None:
        began = time.perf_counter()
        written = found == "predicted" or self._predict(due, evaluator)
        scores = self._score(due) if written else None
        peak = max(self._ranks.gather(peak_memory(self._ranks.device)))  # type: ignore[type-var]
        seconds = time.perf_counter() - began
        values = facts(due.scorer, due.origin.step, due.set.rows, seconds, peak)
        journal.choice_evaluated(phase, seconds)
        self._ranks.from_main(
            lambda: None if scores is None else self._mark(due, values | scores, journal)
        )

    def _predict(self, due: _Due, evaluator: "Evaluator") -> bool:
        """Run the forwards and write what they give. False if that was impossible."""
        bins = [due.set.bins[index] for index in range(len(due.set.bins))]
        predictions = in_row_order(bins, evaluator.choice_logits(bins))

        def write() -> bool:
            try:
                storage.write_predictions(due.directory, predictions, due.origin)
            except (RunError, OSError) as error:
                log.error("%s: nothing is kept: %s; training goes on", _told(due), error)
                return False
            return True

        return bool(self._ranks.from_main(write))

    def _score(self, due: _Due) -> dict[str, float] | None:
        """The scorer's metrics, of rank 0; None if it failed, and on other ranks."""
        if due.scorer is None:
            return {}
        scorer = due.scorer
        work = _Work(lambda: call(scorer, due.set.directory, due.origin, due.directory))
        if self._ranks.is_main:
            work.start()
        while self._ranks.from_main(work.goes_on):
            self._ranks.stop_together(self._stop)
        if work.failure is not None:
            log.error(
                "%s: not scored: %s; training goes on; `python -m curriculum eval %s` scores it",
                _told(due),
                work.failure,
                self._run_dir,
            )
        return work.metrics

    def _mark(self, due: _Due, values: dict[str, Any], journal: "Journal") -> None:
        """Write and log the metrics of a step, on rank 0."""
        try:
            storage.write_metrics(due.directory, values)
        except RunError as error:
            log.error("%s: %s; training goes on", _told(due), error)
            return
        log.info("%s: %s", _told(due), described(values))
        journal.choice_metrics(due.set.name, due.origin.step, values, self._diagram(due))

    def _log_again(self, due: _Due, journal: "Journal") -> None:
        """A tracker may have missed what was scored right before its process was killed; what it
        has it does not take twice."""
        values = storage.read_metrics(due.directory)
        if values is not None:
            journal.choice_metrics(due.set.name, due.origin.step, values, None)

    def _diagram(self, due: _Due) -> Path | None:
        settings = self._config.choice_eval_of(due.origin.phase)
        return diagram.draw(self._run_dir, due.set, settings.kwargs if settings else {})


def is_due(settings: ChoiceEval, phase_step: int, steps: int) -> bool:
    """Whether settings ask for an evaluation after `phase_step` of the `steps` of a phase."""
    every = settings.interval
    return (
        (phase_step == 0 and settings.at_start)
        or (phase_step == steps and settings.at_end)
        or (phase_step > 0 and every is not None and phase_step % every == 0)
    )


def in_row_order(bins: "Sequence[Bin]", logits: Sequence[np.ndarray]) -> Predictions:
    """Predictions by row id, from what an evaluator gives for each bin of a whole set."""
    counts = np.concatenate([one.choice_counts for one in bins]).astype(np.int64)
    row_ids = np.concatenate([one.row_ids for one in bins if one.row_ids is not None])
    order = np.argsort(row_ids)
    starts = (np.cumsum(counts) - counts)[order]
    sizes = counts[order]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    places = np.repeat(starts, sizes) + within
    return Predictions(
        counts=sizes,
        choice_ids=np.concatenate([one.choice_ids for one in bins])[places],
        logits=np.concatenate(logits)[places],
    )


def _told(due: _Due) -> str:
    return f"choice eval {due.set.name}, step {due.origin.step}"


class _Work:
    """A scorer's work in a thread that does not keep the process alive."""

    def __init__(self, action: Callable[[], dict[str, float]]) -> None:
        self.metrics: dict[str, float] | None = None
        self.failure: str | None = None
        self._action = action
        self._thread = threading.Thread(target=self._run, name="scorer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def goes_on(self) -> bool:
        """Wait a little; whether the work is not done yet."""
        self._thread.join(_POLL_SECONDS)
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.metrics = self._action()
        except ScorerFailed as error:
            self.failure = str(error)
        except BaseException as error:
            self.failure = repr(error)
