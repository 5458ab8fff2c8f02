"""Validation of a choice phase on its held-out bins: its own loss, and what its beliefs are worth.

`loss` is the phase's own, weighted as in training. The other figures (`choice_evals.figures`) count
each row that has a weight once: a row of weight 0 is masked, there as here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from curriculum.choice_evals.figures import figures, rows_of
from curriculum.config import Config, Phase
from curriculum.data.choice_set import ChoiceSet
from curriculum.data.windows import find as find_windows
from curriculum.data.windows import prepare as prepare_windows
from curriculum.errors import RunError
from curriculum.probes.base import (
    Evaluator,
    Heldout,
    Prepared,
    ProbeResult,
    heldout_sets,
    probe_name,
    spread,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from curriculum.data.windows import Window

KIND = "choice"


@dataclass(frozen=True)
class ChoiceProbe:
    """The bins `chosen` of one phase's held-out set."""

    name: str
    phase: str
    settings: Phase
    windows: ChoiceSet
    chosen: list[int]
    calibration_bins: int
    objective: str = "choice"
    kind: str = KIND
    reason: str | None = None

    def run(self, evaluator: Evaluator) -> ProbeResult:
        windows = [self.windows[i] for i in self.chosen]
        bins = [window.choice for window in windows if window.choice is not None]
        logits = evaluator.choice_logits(bins)
        loss_sum, weight_sum = phase_loss(self.settings, windows, logits)
        counts = np.concatenate([one.choice_counts for one in bins])
        weighted = np.concatenate([one.weights for one in bins]) > 0
        slots = np.repeat(weighted, counts)
        targets = np.concatenate([one.target_probs for one in bins])
        scored = rows_of(np.concatenate(logits)[slots], counts[weighted], targets[slots])
        values = {"loss": loss_sum / weight_sum, **figures(scored, self.calibration_bins)}
        values["rows"] = len(scored.counts)
        numbers = np.repeat(self.chosen, [one.rows for one in bins])[weighted]
        rows: list[dict[str, Any]] = [
            {"bin": int(number), "confidence": confidence, "deserved": deserved, "right": bool(hit)}
            for number, confidence, deserved, hit in zip(
                numbers,
                scored.confidence.tolist(),
                scored.deserved.tolist(),
                scored.right,
                strict=True,
            )
        ]
        return ProbeResult(self.name, self.phase, values, rows, KIND, self.objective)


def phase_loss(
    settings: Phase, windows: "Sequence[Window]", logits: Sequence[np.ndarray]
) -> tuple[float, float]:
    """Sums of the phase's loss and of its weights over packed-choice windows, a micro-batch each.

    `logits`: of each window's candidates, laid out as its `choice_ids`. Raises `RunError` naming
    the loss function if that fails, or finds no weight.
    """
    import torch  # imported late: probes are prepared without it

    from curriculum.engine.batch import collate
    from curriculum.engine.head import padded_logits
    from curriculum.objectives.choice import ChoiceObjective

    objective = ChoiceObjective(settings)
    loss_sum, weight_sum = 0.0, 0.0
    with torch.no_grad():
        for window, flat in zip(windows, logits, strict=True):
            batch = collate([window], torch.device("cpu"))
            (reduce,) = objective.prepare_step([batch], None)
            assert batch.choices is not None
            loss, weight = reduce(padded_logits(torch.from_numpy(flat), batch.choices.counts))
            if objective.failure:
                raise RunError(objective.failure)
            loss_sum, weight_sum = loss_sum + loss.item(), weight_sum + weight.item()
    if weight_sum <= 0:
        told = f"returned weight_sum={weight_sum} over {len(windows)} bins, which must be above 0"
        raise RunError(f"loss.import_path={objective.import_path}: {told}")
    return loss_sum, weight_sum


def prepare(config: Config, tokenizer: "PreTrainedTokenizerFast") -> list[Prepared]:
    """A probe for each held-out set of a choice phase of the (scaled) plan."""
    return [_prepare(config, held, tokenizer) for held in heldout_sets(config, (KIND,))]


def _prepare(config: Config, held: Heldout, tokenizer: "PreTrainedTokenizerFast") -> Prepared:
    if held.reason:
        return held.absent(KIND, held.reason)
    found = prepare_windows(config, held.phase, "heldout", tokenizer, None)
    assert isinstance(found, ChoiceSet)
    trained = find_windows(config, held.phase, "train")
    if isinstance(trained, ChoiceSet):
        found = found.with_components(trained.mix_components)
    chosen = spread(len(found), config.probes.choice_windows)
    if not any(found[i].loss_weights.any() for i in chosen):
        return held.absent(KIND, f"none of {len(chosen)} held-out bins has a row with a weight")
    return ChoiceProbe(
        probe_name(held.phase, KIND),
        held.phase,
        held.settings,
        found,
        chosen,
        config.probes.calibration_bins,
    )
