"""Figures of choices against sums written out row by row, and a calibration error by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.choice_evals.figures import figures, reliability, rows_of

ROWS = (
    ([0.0, math.log(3.0)], [0.0, 1.0]),
    ([2.0, 2.0, 2.0], [1 / 3, 1 / 3, 1 / 3]),
    ([5.0, -5.0, 0.0, 1.0], [0.0, 0.5, 0.5, 0.0]),
    ([0.3], [1.0]),
)


def flat(rows: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits = np.array([x for row, _ in rows for x in row], np.float32)
    counts = np.array([len(row) for row, _ in rows])
    return logits, counts, np.array([t for _, row in rows for t in row], np.float32)


def by_hand(rows: tuple) -> dict[str, float]:
    """The formulas, one row at a time."""
    sums = {"accuracy": 0.0, "log_likelihood": 0.0, "kl": 0.0, "brier": 0.0}
    for logits, target in rows:
        logits = [float(np.float32(x)) for x in logits]
        target = [float(np.float32(x)) for x in target]
        total = sum(math.exp(x) for x in logits)
        q = [math.exp(x) / total for x in logits]
        best = max(range(len(q)), key=lambda i: logits[i])
        sums["accuracy"] += target[best] == max(target)
        sums["log_likelihood"] += sum(t * math.log(p) for t, p in zip(target, q, strict=True))
        sums["kl"] += sum(t * math.log(t / p) for t, p in zip(target, q, strict=True) if t)
        sums["brier"] += sum((p - t) ** 2 for t, p in zip(target, q, strict=True))
    return {name: value / len(rows) for name, value in sums.items()}


def test_figures_are_the_formulas() -> None:
    got = figures(rows_of(*flat(ROWS)), 10)
    for name, value in by_hand(ROWS).items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_calibration_error_by_hand() -> None:
    """Confidences 0.75 (right), 0.75 (wrong), 0.9 (right): bins of a fifth hold two and one rows,
    |0.75 - 0.5| x 2/3 + |0.9 - 1| x 1/3 = 0.2."""

    def sure(confidence: float, right: bool) -> tuple[list[float], list[float]]:
        return [math.log(confidence), math.log(1 - confidence)], [float(right), float(not right)]

    rows = rows_of(*flat((sure(0.75, True), sure(0.75, False), sure(0.9, True))))
    assert figures(rows, 5)["ece"] == pytest.approx(0.2, abs=1e-6)
    low, high = reliability(rows, 5)
    assert (low.rows, low.deserved, high.rows, high.deserved) == (2, 0.5, 1, 1.0)
    assert (low.low, low.high, high.low, high.high) == pytest.approx((0.6, 0.8, 0.8, 1.0))
    assert figures(rows, 1)["ece"] == pytest.approx(abs(0.8 - 2 / 3), abs=1e-6)


def test_a_model_that_equals_an_uncertain_target_is_calibrated() -> None:
    rows = tuple(([math.log(p), math.log(1 - p)], [p, 1 - p]) for p in (0.6, 0.72, 0.9, 0.99))
    got = figures(rows_of(*flat(rows)), 15)
    assert got["ece"] == pytest.approx(0.0, abs=1e-6)
    assert got["kl"] == pytest.approx(0.0, abs=1e-6)
    assert got["accuracy"] == 1.0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(0, 999))
def test_any_rows(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = tuple(
        ((rng.standard_normal(n) * 40).tolist(), rng.dirichlet(np.ones(n)).tolist()) for n in sizes
    )
    got = figures(rows_of(*flat(rows)), 15)
    for name, value in by_hand(rows).items():
        assert got[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert 0.0 <= got["ece"] <= 1.0
