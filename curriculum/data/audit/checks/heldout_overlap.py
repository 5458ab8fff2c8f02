"""`data/heldout-overlap`: held-out records that the plan trains on measure memory."""

from collections.abc import Iterator

import numpy as np

from curriculum.data.audit.context import PhaseData, of
from curriculum.finding import Finding


def heldout_overlap(data: PhaseData) -> Iterator[Finding]:
    """Warning if training data of any phase holds prompts of this phase's held-out records.

    Counted by prompt and by prompt and target, each normalised (case and white space) and exact.
    """
    heldout = data.heldout
    if heldout is None or not len(heldout):
        return
    seen = {
        column: {name: np.isin(heldout.hashes[column], facts.hashes[column])
                 for name, facts in data.training.items()}
        for column in ("prompt", "prompt_exact", "pair", "pair_exact")
    }  # fmt: skip
    found = {column: np.any(list(rows.values()), axis=0) for column, rows in seen.items()}
    if not found["prompt"].any():
        return
    count = {column: int(rows.sum()) for column, rows in found.items()}
    phases = ", ".join(name for name, rows in seen["prompt"].items() if rows.any())
    yield data.finding(
        "data/heldout-overlap",
        "warning",
        f"{of(count['prompt'], len(heldout), 'held-out prompts')} are in training data, "
        f"{count['prompt_exact']:,} exactly; {count['pair']:,} with the same target, "
        f"{count['pair_exact']:,} exactly (training data of {phases})",
        f"remove these records from the training files, or from those of "
        f"plan.phases.{data.name}.data.heldout",
        heldout.addresses(found["prompt"], data.limits.examples),
    )
