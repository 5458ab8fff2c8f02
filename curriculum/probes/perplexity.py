"""Held-out perplexity, token-weighted: exp(sum of losses / sum of weights) over all windows.

The sums run over every window and rank before the one division, so batches, packing and world
size do not enter. A total per objective is the same quotient over the windows of its phases.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curriculum.config import Config
from curriculum.data.windows import NoWindows, WindowSet
from curriculum.data.windows import prepare as prepare_windows
from curriculum.probes.base import (
    Evaluator,
    Heldout,
    Prepared,
    ProbeResult,
    heldout_sets,
    probe_name,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KIND = "perplexity"
OBJECTIVES = ("generative", "causal")


@dataclass(frozen=True)
class PerplexityProbe:
    """Perplexity of the first `count` of one phase's held-out windows."""

    name: str
    phase: str
    objective: str
    windows: WindowSet
    count: int
    kind: str = KIND
    reason: str | None = None

    def run(self, evaluator: Evaluator) -> ProbeResult:
        loss_sum, weight_sum = evaluator.losses([self.windows[i] for i in range(self.count)])
        return _result(self.name, self.phase, self.objective, loss_sum, weight_sum)


def prepare(config: Config, tokenizer: "PreTrainedTokenizerFast") -> list[Prepared]:
    """A probe for each generative and causal held-out set of the (scaled) plan."""
    return [_prepare(config, held, tokenizer) for held in heldout_sets(config, OBJECTIVES)]


def _prepare(config: Config, held: Heldout, tokenizer: "PreTrainedTokenizerFast") -> Prepared:
    if held.reason:
        return held.absent(KIND, held.reason)
    try:
        found = prepare_windows(config, held.phase, "heldout", tokenizer, None)
    except NoWindows as error:
        # all records dropped (as over-long, say): nothing to measure; bad records stay an error
        return held.absent(KIND, str(error))
    limit = config.probes.perplexity_windows
    count = len(found) if limit is None else min(limit, len(found))
    if not found.trained_tokens(count):
        return held.absent(KIND, f"none of {count} held-out windows has a token with loss")
    return PerplexityProbe(probe_name(held.phase, KIND), held.phase, held.objective, found, count)


def totals(results: Sequence[ProbeResult]) -> list[ProbeResult]:
    """`perplexity.<objective>`: the token-weighted total over the phases of each objective.

    Absent phases are left out; one failed phase makes its total failed.
    """
    found = []
    for objective in OBJECTIVES:
        members = [r for r in results if r.objective == objective and r.status != "absent"]
        if not members:
            continue
        name = f"{KIND}.{objective}"
        failed = [r.phase for r in members if r.status == "failed"]
        if failed:
            reason = f"no total without {', '.join(failed)}"
            found.append(ProbeResult(name, "*", {}, [], KIND, objective, "failed", reason))
            continue
        weights = [r.values["trained_tokens"] for r in members]
        losses = [r.values["loss"] * w for r, w in zip(members, weights, strict=True)]
        found.append(_result(name, "*", objective, math.fsum(losses), math.fsum(weights)))
    return found


def _result(
    name: str, phase: str, objective: str, loss_sum: float, weight_sum: float
) -> ProbeResult:
    """`loss` in nats per trained token, `trained_tokens` the sum of loss weights."""
    loss = loss_sum / weight_sum if weight_sum else math.nan
    try:
        perplexity = math.exp(loss)
    except OverflowError:
        perplexity = math.inf
    values = {"perplexity": perplexity, "loss": loss, "trained_tokens": weight_sum}
    return ProbeResult(name, phase, values, [], KIND, objective)
