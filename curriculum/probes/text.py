"""Figures about generated text: exact match, repetition, sameness, abstention.

All are plain functions of strings or token ids with answers that can be worked out by hand.
"""

from collections import Counter
from collections.abc import Sequence

from curriculum.data.abstention import normalise


def exact_match(output: str, target: str) -> bool:
    """Equal after `normalise` (lower case, no punctuation, single spaces).

    Texts that are all punctuation, of which nothing would be left, are compared as they are.
    """
    wanted = normalise(target)
    if not wanted:
        return output.strip() == target.strip()
    return normalise(output) == wanted


def repeated_trigram_rate(tokens: Sequence[int]) -> float:
    """Share of the trigrams of one output that occurred before in it; 0 below three tokens."""
    trigrams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    if not trigrams:
        return 0.0
    return 1.0 - len(set(trigrams)) / len(trigrams)


def most_common_share(outputs: Sequence[str]) -> float | None:
    """Share of the most frequent normalised output; None without outputs."""
    if not outputs:
        return None
    return Counter(map(normalise, outputs)).most_common(1)[0][1] / len(outputs)


def mean(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def abstention_scores(abstained: Sequence[bool], unanswerable: Sequence[bool]) -> dict[str, float]:
    """Precision, recall and F1 of abstaining on unanswerable records, and where it was wrong.

    A zero denominator of precision or F1 gives 0 (nobody abstained). Without unanswerable records
    the three have no meaning and are left out; likewise `false_abstention_share` (abstentions
    among answerable records) without answerable ones.
    """
    pairs = list(zip(abstained, unanswerable, strict=True))
    right = sum(said and due for said, due in pairs)
    said = sum(abstained)
    due = sum(unanswerable)
    scores: dict[str, float] = {}
    if due:
        scores["abstention_precision"] = right / said if said else 0.0
        scores["abstention_recall"] = right / due
        scores["abstention_f1"] = 2 * right / (said + due)
    if len(pairs) > due:
        scores["false_abstention_share"] = (said - right) / (len(pairs) - due)
    return scores
