"""Functions that score predictions: the shipped one, and any of a user's.

A scorer is called with the keywords below and the eval's `kwargs`, and returns metrics by name.

    name         of the set
    path         its directory
    step         steps of the run that the scored weights have behind them
    predictions  path of `predictions.arrow` (`choice_evals.storage` has its columns)
    output_dir   the directory of the step, for files of the scorer's own

What it raises, or returns besides finite numbers, is told and never stops the run.
"""

import json
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.choice_evals import figures as formulas
from curriculum.choice_evals.storage import PREDICTIONS, Origin, read_predictions
from curriculum.config import ChoiceEval
from curriculum.data.packed_choice import TARGETS_FILE, read_targets
from curriculum.errors import RunError
from curriculum.user_function import user_function

KEYWORDS = ("name", "path", "step", "predictions", "output_dir")

# what every `metrics.json` says besides the scorer's metrics
FACTS = ("step", "scorer", "scorer_kwargs", "rows", "seconds", "peak_memory_bytes")

BINS = 15


class ScorerFailed(Exception):
    """What a scorer did wrong, in one line."""


@dataclass(frozen=True)
class Scorer:
    """A function by its import path, and the options it gets."""

    import_path: str
    function: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **given: Any) -> dict[str, float]:
        """The metrics, checked: flat and finite. Raises `ScorerFailed`, whatever went wrong."""
        try:
            found = self.function(**given, **self.kwargs)
        except RunError as error:
            raise ScorerFailed(self._told(str(error))) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's code may raise anything, SystemExit included
            text = " ".join(str(error).split())
            raise ScorerFailed(self._told(f"raised {type(error).__name__}: {text}")) from error
        try:
            return _checked(found)
        except ValueError as error:
            raise ScorerFailed(self._told(f"returned {error}")) from None

    def identity(self) -> dict[str, str]:
        """What a marked step was scored by, so that other kwargs are noticed, too."""
        given = json.dumps(dict(self.kwargs), sort_keys=True, default=repr)
        return {"scorer": self.import_path, "scorer_kwargs": given}

    def scored(self, values: Mapping[str, Any]) -> bool:
        """True if the values of a `metrics.json` are of this function with these kwargs. A step
        that was marked before kwargs were noted counts as scored with any."""
        return all(values.get(key, own) == own for key, own in self.identity().items())

    def _told(self, what: str) -> str:
        return f"choice_eval.import_path={self.import_path}: {what}"


def load_scorer(place: str, settings: ChoiceEval) -> Scorer | None:
    """The scorer that settings at a dotted place name; None if they name none.

    Raises `UserError` if it cannot be imported or would not take the keywords and `kwargs`.
    """
    path = settings.import_path
    if path is None:
        return None
    function = user_function(
        place,
        path,
        settings.kwargs,
        keywords=KEYWORDS,
        given_by="the run",
        example="curriculum.choice_evals.score",
        colon=True,
    )
    return Scorer(path, function, settings.kwargs)


def facts(
    scorer: Scorer | None, step: int, rows: int, seconds: float, peak_memory_bytes: int | None
) -> dict[str, Any]:
    """What `metrics.json` says besides the scorer's metrics."""
    by = {"scorer": None, "scorer_kwargs": None} if scorer is None else scorer.identity()
    measured = {"rows": rows, "seconds": seconds, "peak_memory_bytes": peak_memory_bytes}
    return {"step": step, **by, **measured}


def call(scorer: Scorer, path: Path, origin: Origin, directory: Path) -> dict[str, float]:
    """The metrics of the predictions in a step's directory, of the set that lies at `path`. Raises
    `ScorerFailed`."""
    return scorer(
        name=origin.name,
        path=path,
        step=origin.step,
        predictions=directory / PREDICTIONS,
        output_dir=directory,
    )


def score(
    *,
    name: str,
    path: Path,
    step: int,
    predictions: Path,
    output_dir: Path,
    targets: str | None = None,
    bins: int = BINS,
) -> dict[str, float]:
    """The shipped scorer: the figures of `choice_evals.figures`, `ece` over `bins` bins.

    `targets`: an Arrow file of `row_id` int64 and `target_probs` list<float32>; None means
    `targets.arrow` in the directory of the set, where packing puts it. Raises `RunError` if there
    is none or it does not fit the predictions.
    """
    if bins < 1:
        raise RunError(f"kwargs.bins={bins}: the calibration error needs at least 1 bin")
    file = path / TARGETS_FILE if targets is None else Path(targets)
    if not file.is_file():
        raise RunError(
            f"{file}: no such file; the shipped scorer needs the target distributions: pack the "
            "set from records that have them, or name the file by kwargs.targets"
        )
    found, _ = read_predictions(predictions.parent)
    if not np.isfinite(found.logits).all():
        row = int(np.searchsorted(np.cumsum(found.counts), np.isfinite(found.logits).argmin() + 1))
        raise RunError(f"{predictions}: row {row} has a logit that is not finite")
    return formulas.figures(
        formulas.rows_of(found.logits, found.counts, read_targets(file, found.counts)), bins
    )


def _checked(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        raise ValueError(f"{_shown(found)}, not metrics by name (a dict of numbers)")
    metrics: dict[str, float] = {}
    for name, value in found.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a metric named {name!r}; names are texts")
        if name in FACTS:
            raise ValueError(f"a metric named {name!r}, which the run itself writes; rename it")
        number = _number(value)
        if number is None:
            raise ValueError(f"{name}={_shown(value)}, not a number")
        if not math.isfinite(number):
            raise ValueError(f"{name}={number}, not a finite number")
        metrics[name] = number
    return metrics


def _number(value: Any) -> float | None:
    """A number of Python, numpy (also an array of no dimension) or torch; None for the rest."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return float(value)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
