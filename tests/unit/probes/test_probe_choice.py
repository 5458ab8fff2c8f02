"""The validation of choice phases: its figures by hand, and what there is to say without any."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from curriculum.config import Config
from curriculum.data.packed_choice import Bin, open_packed, write_packed
from curriculum.errors import RunError
from curriculum.probes import ProbeSuite, check_heldout

LN = math.log


def packed(directory: Path, weights: list[float], split: str = "val") -> str:
    """One bin a weight, each with one row: two choices, the targets 0.75 and 0.25."""
    bins = [
        Bin(
            input_ids=np.array([5, 6, 7], np.int32),
            seq_lens=np.array([3], np.int32),
            positions=np.array([1], np.int32),
            choice_ids=np.array([8, 9], np.int32),
            choice_counts=np.array([2], np.int32),
            target_probs=np.array([0.75, 0.25], np.float32),
            weights=np.array([weight], np.float32),
            mix_weights=np.zeros((1, 0), np.float32),
        )
        for weight in weights
    ]
    write_packed(directory, bins, split=split, seq_len=32)
    return str(directory)


@pytest.fixture
def suite(
    config: Callable[..., Config], phase: Callable[..., Any], tokenizer: Any
) -> Callable[..., ProbeSuite]:
    def build(heldout: list[str], limits: dict[str, Any] | None = None, **more: Any) -> ProbeSuite:
        chosen = phase("choice", "choice", heldout, role="calibration", **more)
        return ProbeSuite.build(config({"c": chosen}, **(limits or {})), tokenizer)

    return build


def answering(evaluator: Any, probabilities: list[float]) -> Any:
    """The first choice of bin i gets probability i of these; logits may have any offset."""
    evaluator.choice_logits = lambda bins: [
        np.log(np.array([p, 1 - p], np.float32)) + 11 for p in probabilities[: len(bins)]
    ]
    return evaluator


def test_figures_by_hand(suite: Any, evaluator: Any, tmp_path: Path) -> None:
    """Three bins, one of weight 0 that must not count anywhere."""
    probes = suite([packed(tmp_path / "val", [1.0, 0.0, 3.0])], {"calibration_bins": 10})
    (result,) = probes.run(answering(evaluator, [0.95, 0.123, 0.4]))
    assert (result.name, result.kind, result.objective) == ("c.choice", "choice", "choice")
    assert result.status == "ok"

    def crossed(q: float) -> float:
        return -(0.75 * LN(q) + 0.25 * LN(1 - q))

    entropy = -(0.75 * LN(0.75) + 0.25 * LN(0.25))
    likelihood = -(crossed(0.95) + crossed(0.4)) / 2
    expected = {
        "loss": (1 * crossed(0.95) + 3 * crossed(0.4)) / 4,
        "accuracy": 0.5,  # the second one says the less probable choice
        "log_likelihood": likelihood,
        "kl": -likelihood - entropy,
        "brier": (2 * 0.2**2 + 2 * 0.35**2) / 2,
        "ece": (abs(0.95 - 0.75) + abs(0.6 - 0.25)) / 2,
        "rows": 2,
    }
    assert result.values == pytest.approx(expected, rel=1e-5)
    assert [row["bin"] for row in result.rows] == [0, 2]
    assert [row["right"] for row in result.rows] == [True, False]


def test_the_loss_is_the_phases_own(suite: Any, evaluator: Any, tmp_path: Path) -> None:
    where = [packed(tmp_path / "val", [1.0, 0.0, 3.0])]
    (result,) = suite(where, loss={"import_path": "curriculum.losses.brier"}).run(
        answering(evaluator, [0.95, 0.123, 0.4])
    )
    assert result.values["loss"] == pytest.approx((2 * 0.2**2 + 3 * 2 * 0.35**2) / 4, rel=1e-5)


def test_a_limit_spreads_over_the_bins(suite: Any, evaluator: Any, tmp_path: Path) -> None:
    probes = suite([packed(tmp_path / "val", [1.0] * 9)], {"choice_windows": 3})
    seen: list[int] = []
    evaluator.choice_logits = lambda bins: seen.append(len(bins)) or [np.zeros(2, np.float32)] * 3
    (result,) = probes.run(evaluator)
    assert seen == [3] and result.values["rows"] == 3
    assert len({row["bin"] // 3 for row in result.rows}) == 3


def test_nothing_to_validate_is_told_at_the_start(
    suite: Any, config: Any, phase: Any, evaluator: Any, tmp_path: Path
) -> None:
    masked = packed(tmp_path / "masked", [0.0, 0.0])
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for heldout, reason in (
        ([], "data.heldout is empty"),
        ([str(tmp_path / "absent")], "data.heldout matches no file"),
        ([str(empty)], "data.heldout holds no record"),
        ([masked], "none of 2 held-out bins has a row with a weight"),
    ):
        probes = suite(heldout)
        assert [note for note in probes.notes if reason in note], (heldout, probes.notes)
        (result,) = probes.run(evaluator)
        assert result.status == "absent" and result.values == {}
        if heldout != [masked]:
            plan = config({"c": phase("choice", "choice", heldout, role="calibration")})
            assert reason in check_heldout(plan)[0]
    assert evaluator.calls == 0


@pytest.mark.parametrize(("policy", "told"), [("error", "do not fit"), ("drop", "over-long: 1")])
def test_held_out_records_that_are_all_too_long_are_told_at_the_start(
    suite: Any, tmp_path: Path, policy: str, told: str
) -> None:
    row = {"prompt": "king " * 99, "choices": ["Ann", "Bob"], "answer": 0}
    (tmp_path / "long.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(RunError, match=f"phase c, heldout data: (.|\n)*{told}"):
        suite([str(tmp_path / "long.jsonl")], data={"on_over_long": policy})


def test_a_loss_that_fails_is_named_and_stops_nothing(
    suite: Any, evaluator: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "probed_losses.py").write_text(
        "def loss(**given):\n    raise LookupError('mix')\n"
        "def nan(*, choice_logits, weights, **given):\n"
        "    return choice_logits.sum() * float('nan'), weights.sum()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "probed_losses", raising=False)
    where = [packed(tmp_path / "val", [1.0])]
    for name, reason in (
        ("loss", "loss.import_path=probed_losses.loss: raised LookupError: mix"),
        ("nan", "loss is nan"),
    ):
        own = {"import_path": f"probed_losses.{name}"}
        (result,) = suite(where, loss=own).run(answering(evaluator, [0.5]))
        assert result.status == "failed" and reason in result.reason
        assert all(map(math.isfinite, result.values.values()))


def test_a_loss_without_any_weight_is_named(
    suite: Any, evaluator: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "weightless.py").write_text(
        "def loss(*, choice_logits, weights, **given):\n"
        "    return choice_logits[:, 0].sum(), 0 * weights.sum()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    where = [packed(tmp_path / "val", [1.0])]
    (result,) = suite(where, loss={"import_path": "weightless.loss"}).run(
        answering(evaluator, [0.5])
    )
    assert result.status == "failed"
    assert "loss.import_path=weightless.loss: returned weight_sum=0.0 over 1 bins" in result.reason


def test_validation_has_the_mixture_of_training(suite: Any, evaluator: Any, tmp_path: Path) -> None:
    """Of held-out data in another order of components, each row's loss is its own component's."""
    one = np.zeros((1, 2), np.float32)
    for name, split, components, share in (
        ("train", "train", ["polls", "exams"], [0.0, 1.0]),
        ("val", "val", ["exams", "polls"], [0.0, 1.0]),
    ):
        packed(tmp_path / "bare" / name, [1.0], split)
        (given,) = open_packed(tmp_path / "bare" / name, vocab_size=None)
        mixed = replace(given, mix_weights=one + np.array(share, np.float32))
        write_packed(tmp_path / name, [mixed], split=split, seq_len=32, mix_components=components)
    (tmp_path / "by_place.py").write_text(
        "def loss(*, mix_weights, weights, choice_logits, **given):\n"
        "    return 0 * choice_logits[:, 0].sum() + mix_weights[:, 0].sum(), weights.sum()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        probes = suite(
            [str(tmp_path / "val")],
            loss={"import_path": "by_place.loss"},
            data={"sources": [str(tmp_path / "train")]},
        )
        (result,) = probes.run(answering(evaluator, [0.5]))
    finally:
        sys.path.remove(str(tmp_path))
    assert result.values["loss"] == 1.0  # polls, the first component of training
