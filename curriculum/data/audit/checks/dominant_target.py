"""`data/dominant-target`: what a model is told to say too often, it says to everything."""

from collections.abc import Iterator

import numpy as np

from curriculum.data.audit.context import PhaseData, of
from curriculum.data.audit.facts import Flag, frequent
from curriculum.finding import Finding

_FEWEST = 3  # copies: below, a small set would be all dominant targets
_LABELS = 20  # distinct targets: at most so many look like labels


def dominant_target(data: PhaseData) -> Iterator[Finding]:
    """Error or warning by the share of the most frequent target among all targets."""
    targets, limits = data.facts.hashes["target"], data.limits
    values, counts = frequent(targets)
    total = int(counts.sum())
    if not total or counts[0] < _FEWEST or counts[0] / total <= limits.dominant_target_warning:
        return
    top = int(counts[0])
    error = top / total > limits.dominant_target_error
    limit = limits.dominant_target_error if error else limits.dominant_target_warning
    rows = np.flatnonzero(targets == values[0])
    next_one = f", {top / int(counts[1]):,.3g} times the next" if len(counts) > 1 else ""
    if data.facts.has(Flag.ABSTAINS)[rows].mean() > 0.5:
        remedy = (
            f"python -m curriculum data abstain {data.facts.files[0]} OUT share=0.10, then "
            f"plan.phases.{data.name}.data.sources=[OUT]"
        )
    elif len(values) <= _LABELS:
        remedy = (
            f"rebalance the records; if these are {len(values)} labels and meant so, "
            "checks.ignore=[data/dominant-target] silences this"
        )
    else:
        remedy = "deduplicate or rebalance the records that share this target"
    yield data.finding(
        "data/dominant-target",
        "error" if error else "warning",
        f"one target is {of(top, total, 'targets')}{next_one} (limit {limit:.0%}): "
        f"{data.facts.texts[int(values[0])]}",
        remedy,
        data.facts.addresses(rows, limits.examples),
    )
