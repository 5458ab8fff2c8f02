"""What a model's distributions over a few choices are worth, beside the target distributions.

All figures are means over rows. With q the softmax of a row's logits, p its target and c the choice
that q puts highest:

    accuracy        rows in which p is highest at c, too
    log_likelihood  sum(p log q), in nats: for one right answer the logarithm of its probability
    kl              sum(p log(p / q)), in nats; 0 log 0 is 0
    brier           sum((q - p)^2) over all choices (Brier, 1950)
    ece             expected calibration error (Guo et al., 2017, "On Calibration of Modern Neural
                    Networks"): rows fall into bins of equal width by their confidence q(c); the sum
                    over bins of |mean confidence - mean p(c)|, weighted by rows

p(c) is 1 or 0 where one answer is right. Where the target is itself uncertain it is the share of
the belief that c deserves, so that a model that equals the target has an error of 0.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """N rows of choices end to end. `counts` int64 [N]; `q`, `log_q` and `p` float64 [sum(counts)];
    `confidence` and `deserved` float64 [N] are q and p at the choice that q puts highest; `right`
    [N] says whether p is highest there."""

    counts: np.ndarray
    log_q: np.ndarray
    q: np.ndarray
    p: np.ndarray
    confidence: np.ndarray
    deserved: np.ndarray
    right: np.ndarray


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows whose confidence is in (`low`, `high`]: how many, and the means of confidence and of
    what it deserves."""

    low: float
    high: float
    rows: int
    confidence: float
    deserved: float


def rows_of(logits: np.ndarray, counts: np.ndarray, targets: np.ndarray) -> Rows:
    """Rows from `logits` and `targets` [sum(counts)], row after row; every row has a choice."""
    counts = counts.astype(np.int64)
    starts = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    scores = logits.astype(np.float64)
    scores = scores - np.maximum.reduceat(scores, starts)[row]
    log_q = scores - np.log(np.add.reduceat(np.exp(scores), starts))[row]
    q, p = np.exp(log_q), targets.astype(np.float64)
    first = np.zeros(len(row), dtype=bool)
    first[_first_highest(scores, row, starts)] = True
    best = np.maximum.reduceat(p, starts)
    deserved = p[first]
    return Rows(counts, log_q, q, p, q[first], deserved, deserved >= best)


def figures(rows: Rows, bins: int) -> dict[str, float]:
    """The five figures, `ece` over `bins` bins."""
    starts = np.cumsum(rows.counts) - rows.counts

    def mean(values: np.ndarray) -> float:
        return float(np.add.reduceat(values, starts).mean())

    log_p = np.log(np.where(rows.p > 0, rows.p, 1.0))
    certain = np.where(rows.p > 0, rows.p * rows.log_q, 0.0)
    return {
        "accuracy": float(rows.right.mean()),
        "log_likelihood": mean(certain),
        "kl": mean(rows.p * log_p - certain),
        "brier": mean((rows.q - rows.p) ** 2),
        "ece": sum(
            part.rows * abs(part.confidence - part.deserved) for part in reliability(rows, bins)
        )
        / len(rows.counts),
    }


def reliability(rows: Rows, bins: int) -> list[ReliabilityBin]:
    """The bins of the calibration error that hold a row, by confidence."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    place = np.clip(np.searchsorted(edges, rows.confidence, side="left") - 1, 0, bins - 1)
    return [
        ReliabilityBin(
            float(edges[number]),
            float(edges[number + 1]),
            int(inside.sum()),
            float(rows.confidence[inside].mean()),
            float(rows.deserved[inside].mean()),
        )
        for number in range(bins)
        if (inside := place == number).any()
    ]


def _first_highest(scores: np.ndarray, row: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The place of each row's highest score, of equal ones the first. `scores` have a maximum of 0
    in every row."""
    at_top = np.flatnonzero(scores == 0.0)
    _, first = np.unique(row[at_top], return_index=True)
    return at_top[first]
