"""Perplexity is one quotient of sums, however the windows are grouped."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from curriculum.probes import ProbeSuite
from curriculum.probes.base import Absent, only_finite
from curriculum.probes.perplexity import PerplexityProbe, totals


@dataclass
class Row:
    """A window whose loss per trained token is its first input id (see the fake evaluator)."""

    input_ids: np.ndarray
    loss_weights: np.ndarray


def row(loss: float, trained: int, length: int = 24) -> Row:
    weights = np.zeros(length, dtype=np.float32)
    weights[:trained] = 1
    return Row(np.full(length, loss), weights)


# Mean loss per row 1, 2, 3, 4, 5 over 1, 20, 4, 7, 13 trained tokens.
ROWS = [row(1, 1), row(2, 20), row(3, 4), row(4, 7), row(5, 13)]
LOSS = (1 * 1 + 2 * 20 + 3 * 4 + 4 * 7 + 5 * 13) / 45


def probe(name: str, rows: list[Row], objective: str = "generative") -> PerplexityProbe:
    return PerplexityProbe(f"{name}.perplexity", name, objective, rows, len(rows))  # type: ignore[arg-type]


def test_perplexity_is_token_weighted(evaluator) -> None:
    result = probe("qa", ROWS).run(evaluator)
    assert result.values == {
        "perplexity": pytest.approx(math.exp(146 / 45)),
        "loss": pytest.approx(146 / 45),
        "trained_tokens": 45,
    }
    assert pytest.approx(146 / 45) == LOSS != pytest.approx((1 + 2 + 3 + 4 + 5) / 5)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_total_does_not_depend_on_how_rows_are_grouped(evaluator, size: int) -> None:
    groups = [ROWS[start : start + size] for start in range(0, len(ROWS), size)]
    results = [probe(f"p{i}", rows).run(evaluator) for i, rows in enumerate(groups)]
    (total,) = totals(results)
    assert total.name == "perplexity.generative"
    assert total.values["loss"] == pytest.approx(LOSS, rel=1e-12)
    assert total.values["perplexity"] == pytest.approx(math.exp(LOSS), rel=1e-12)
    assert total.values["trained_tokens"] == 45


def test_each_objective_has_its_own_total(evaluator) -> None:
    suite = ProbeSuite((probe("qa", [row(2, 3)]), probe("text", [row(4, 5)], "causal")))
    found = {r.name: r for r in suite.run(evaluator)}
    assert found["perplexity.generative"].values["loss"] == pytest.approx(2)
    assert found["perplexity.causal"].values["loss"] == pytest.approx(4)
    assert found["perplexity.causal"].phase == "*"


def test_part_of_the_phases_has_no_total(evaluator) -> None:
    suite = ProbeSuite((probe("qa", [row(2, 3)]), probe("plan", [row(4, 5)])))
    assert [r.name for r in suite.run(evaluator, ["qa"])] == ["qa.perplexity"]
    assert suite.run(evaluator, ["perplexity"])[-1].name == "perplexity.generative"


def test_a_nan_loss_is_a_failure_and_never_a_value(evaluator) -> None:
    suite = ProbeSuite((probe("qa", [row(float("nan"), 3)]), probe("ok", [row(2, 3)])))
    found = {r.name: r for r in suite.run(evaluator)}
    broken = found["qa.perplexity"]
    assert broken.status == "failed"
    assert broken.values == {"trained_tokens": 3}
    assert "loss is nan" in (broken.reason or "")
    assert found["ok.perplexity"].values["loss"] == 2
    total = found["perplexity.generative"]
    assert (total.status, total.values, total.reason) == ("failed", {}, "no total without qa")


def test_a_loss_beyond_exp_keeps_the_loss(evaluator) -> None:
    result = only_finite(probe("qa", [row(800, 3)]).run(evaluator))
    assert result.values == {"loss": 800, "trained_tokens": 3}
    assert "perplexity is inf" in (result.reason or "")


def test_absent_phases_are_left_out_of_the_total(evaluator) -> None:
    absent = Absent("none.perplexity", "none", "perplexity", "generative", "nothing")
    found = {r.name: r for r in ProbeSuite((absent, probe("qa", [row(2, 3)]))).run(evaluator)}
    assert found["none.perplexity"].status == "absent"
    assert found["perplexity.generative"].values["loss"] == 2
    alone = ProbeSuite((absent,)).run(evaluator)
    assert [r.name for r in alone] == ["none.perplexity"]
