"""Steps of a run whose predictions wait for a score: the scorer failed, was killed, or is another.

Nothing is computed again but the score: the predictions are those of the weights of that time.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum import store
from curriculum.choice_evals import diagram, storage
from curriculum.choice_evals.scorers import Scorer, ScorerFailed, call, facts, load_scorer
from curriculum.choice_evals.sets import EvalSet, open_sets, settings_of
from curriculum.config import Config
from curriculum.errors import RunError
from curriculum.faults import run_lock
from curriculum.tracking.journal import track_later

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rescored:
    """What became of one step: the values of its `metrics.json`, or why it has none."""

    name: str
    step: int
    values: dict[str, Any] | None = None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        status = "ok" if self.values is not None else "failed"
        told = {"name": self.name, "step": self.step, "status": status, "reason": self.reason}
        return told | {"values": self.values or {}}


def has_choice_evals(run_dir: Path) -> bool:
    """True if predictions of any step lie in a run directory."""
    return bool(storage.steps(run_dir))


def rescore(
    config: Config, scaled: Config, tokenizer: Callable[[], "PreTrainedTokenizerFast"]
) -> list[Rescored]:
    """Score every step of the run of `config` that is not marked as scored by the scorer that its
    phase names now, log and track the results, and draw the diagrams anew.

    `scaled` is `config` at its scale. Raises `UserError` for a scorer or set that cannot be opened,
    and `RunError` while the run trains.
    """
    run_dir = Path(config.run.dir)
    places = {phase: (place, settings) for phase, place, settings in settings_of(scaled)}
    scorers = {phase: load_scorer(place, settings) for phase, (place, settings) in places.items()}
    waiting = [directory for directory in storage.steps(run_dir) if _waits(directory, scorers)]
    if not waiting:
        return []
    with run_lock.held(run_dir, config.run.stale_seconds):
        sets = open_sets(scaled, tokenizer())
        found = [_rescored(directory, sets, scorers) for directory in waiting]
        diagrams = []
        for name in dict.fromkeys(one.name for one in found if one.values is not None):
            kwargs = next(s.kwargs for _, s in places.values() if name in s.sets)
            diagrams.append(diagram.draw(run_dir, sets[name], kwargs))
        track_later(
            config,
            _tracker_ids(run_dir),
            [(one.name, one.step, one.values) for one in found if one.values is not None],
            [path for path in diagrams if path is not None],
        )
    return found


def _waits(directory: Path, scorers: Mapping[str, Scorer | None]) -> bool:
    """True for predictions that the scorer of their phase has not scored."""
    values = storage.read_metrics(directory)
    if values is None:
        return True
    try:
        _, origin = storage.read_predictions(directory)
    except RunError:
        return False
    scorer = scorers.get(origin.phase)
    return scorer is not None and not scorer.scored(values)


def _rescored(
    directory: Path, sets: Mapping[str, EvalSet], scorers: Mapping[str, Scorer | None]
) -> Rescored:
    began = time.perf_counter()
    name, step = directory.parent.name, int(directory.name.removeprefix("step_"))
    try:
        predictions, origin = storage.read_predictions(directory)
        if name not in sets or origin.phase not in scorers:
            raise RunError(f"phase {origin.phase} names no such set any more (choice_eval.sets)")
        if sets[name].digest != origin.set:
            raise RunError(f"{sets[name].directory}: the set has changed since the predictions")
        scorer = scorers[origin.phase]
        scores = {} if scorer is None else call(scorer, sets[name].directory, origin, directory)
        before = storage.read_metrics(directory) or {}
        seconds = before.get("seconds", time.perf_counter() - began)
        peak = before.get("peak_memory_bytes")
        values = facts(scorer, step, len(predictions.counts), seconds, peak) | scores
        storage.write_metrics(directory, values)
    except (RunError, ScorerFailed) as error:
        log.error("choice eval %s, step %d: not scored: %s", name, step, error)
        return Rescored(name, step, reason=str(error))
    return Rescored(name, step, values)


def _tracker_ids(run_dir: Path) -> Mapping[str, Any] | None:
    """The tracker's runs, as the newest checkpoint knows them."""
    for checkpoint in reversed(store.step_directories(run_dir / "checkpoints")):
        with suppress(RunError, KeyError):
            return store.read_meta(checkpoint)["journal"]["tracker"]
    return None
