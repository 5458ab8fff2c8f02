"""Findings about targets that say that there is no answer."""

from collections.abc import Iterator

import numpy as np

from curriculum.data.audit.context import PhaseData, of
from curriculum.data.audit.facts import Flag, frequent
from curriculum.finding import Finding

_FEWEST = 20  # abstentions from which on their wordings can be judged


def _remedy(data: PhaseData) -> str:
    return f"python -m curriculum data abstain {data.facts.files[0]} OUT share=0.10"


def abstains_with_answer_present(data: PhaseData) -> Iterator[Finding]:
    """Warning if records abstain although an answer is known to stand in their passages."""
    facts = data.facts
    abstains = facts.has(Flag.ABSTAINS)
    by_field = abstains & facts.has(Flag.ANSWER_IN_FIELD)
    by_other = abstains & facts.has(Flag.ANSWER_ELSEWHERE) & ~by_field
    by_flag = abstains & facts.has(Flag.ANSWERABLE) & ~by_field & ~by_other
    found = by_field | by_other | by_flag
    if found.any():
        known = {
            "by a field of the record": by_field,
            "by another record with the same question": by_other,
            "by answerable: true": by_flag,
        }
        how = ", ".join(f"{int(rows.sum()):,} {what}" for what, rows in known.items() if rows.any())
        yield data.finding(
            "data/abstains-with-answer-present",
            "warning",
            f"{of(int(found.sum()), int(abstains.sum()), 'abstentions')} have an answer in their "
            f"passages ({how})",
            "give these records that answer as target, or remove the passage that holds it "
            "(python -m curriculum data abstain IN OUT synthesize=true makes such records soundly)",
            facts.addresses(found, data.limits.examples),
        )


def abstention_share(data: PhaseData) -> Iterator[Finding]:
    """Warning if more records abstain than a model can take for the exception."""
    abstains = data.facts.has(Flag.ABSTAINS)
    count, total = int(abstains.sum()), len(data.facts)
    if total and count / total > data.limits.max_abstention_share:
        yield data.finding(
            "data/abstention-share",
            "warning",
            f"{of(count, total)} abstain (limit {data.limits.max_abstention_share:.0%})",
            _remedy(data),
            data.facts.addresses(abstains, data.limits.examples),
        )


def paraphrase_imbalance(data: PhaseData) -> Iterator[Finding]:
    """Warning if abstentions are worded in few ways, or mostly in one.

    Wordings that occur once are often one wording with something filled in, so together they
    count as as many as would occur as often as the others do.
    """
    wordings = data.facts.hashes["wording"]
    values, counts = frequent(wordings)
    total = int(counts.sum())
    if total < _FEWEST:
        return
    repeated = counts[counts > 1]
    singles = int((counts == 1).sum())
    usual = float(repeated[1:].mean()) if len(repeated) > 1 else 1.0
    average = total / max(1.0, len(repeated) + singles / usual)
    top = int(counts[0])
    too_few = len(values) < data.limits.min_paraphrases
    if top / average <= data.limits.max_paraphrase_ratio and not too_few:
        return
    few = f"only {len(values)} wordings" if too_few else "unequal wordings"
    yield data.finding(
        "data/paraphrase-imbalance",
        "warning",
        f"{few} of an abstention in {total:,} records: the most frequent is used {top:,} times, "
        f"{top / average:.1f} times the average (limit {data.limits.max_paraphrase_ratio:g}, and "
        f"at least {data.limits.min_paraphrases} wordings): {data.facts.texts[int(values[0])]}",
        f"{_remedy(data)} (rewrites abstentions evenly from a bank of paraphrases)",
        data.facts.addresses(np.flatnonzero(wordings == values[0]), data.limits.examples),
    )
