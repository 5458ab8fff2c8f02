"""Figures about texts against values worked out by hand."""

import pytest

from curriculum.probes.text import (
    abstention_scores,
    exact_match,
    most_common_share,
    repeated_trigram_rate,
)


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [
        ([], 0.0),
        ([1], 0.0),
        ([1, 2], 0.0),
        ([1, 2, 3], 0.0),
        ([7, 7, 7, 7], 1 / 2),  # 777 777
        ([7] * 10, 7 / 8),
        ([1, 2, 3, 1, 2, 3], 1 / 4),  # 123 231 312 123
        ([1, 2, 1, 2, 1, 2], 2 / 4),  # 121 212 121 212
        (list(range(20)), 0.0),
    ],
)
def test_repeated_trigrams(tokens: list[int], rate: float) -> None:
    assert repeated_trigram_rate(tokens) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("output", "target", "same"),
    [
        ("Lake Orr.", "lake  orr", True),
        ("the Lake, Orr", "The lake: Orr!", True),
        ("Lake Orra", "Lake Orr", False),
        ("3.5", "35", False),
        ("", "Lake Orr", False),
        (" + ", "+", True),
        ("-", "+", False),
        ("ÉTÉ", "été", True),
    ],
)
def test_exact_match(output: str, target: str, same: bool) -> None:
    assert exact_match(output, target) is same


def test_most_common_share_counts_normalised_outputs() -> None:
    assert most_common_share(["Yes.", "yes", "no", "maybe"]) == 0.5
    assert most_common_share(["", "", "", "a"]) == 0.75
    assert most_common_share([]) is None


def test_abstention_scores() -> None:
    # Unanswerable: 4, of which 3 abstained; answerable: 6, of which 1 abstained.
    abstained = [True, True, True, False, True, False, False, False, False, False]
    unanswerable = [True] * 4 + [False] * 6
    assert abstention_scores(abstained, unanswerable) == {
        "abstention_precision": pytest.approx(3 / 4),
        "abstention_recall": pytest.approx(3 / 4),
        "abstention_f1": pytest.approx(3 / 4),
        "false_abstention_share": pytest.approx(1 / 6),
    }


def test_abstention_scores_differ_in_precision_and_recall() -> None:
    # A model that abstains on everything: precision 1/4, recall 1, F1 = 2*(1/4)/(5/4) = 2/5.
    found = abstention_scores([True] * 4, [True, False, False, False])
    assert found["abstention_precision"] == pytest.approx(1 / 4)
    assert found["abstention_recall"] == 1.0
    assert found["abstention_f1"] == pytest.approx(2 / 5)
    assert found["false_abstention_share"] == 1.0


def test_abstention_scores_without_one_side() -> None:
    never = abstention_scores([False, False], [True, True])
    assert never == {"abstention_precision": 0, "abstention_recall": 0, "abstention_f1": 0}
    assert abstention_scores([False, True], [False, False]) == {"false_abstention_share": 0.5}
    assert abstention_scores([], []) == {}
