"""Order as a pure function of seed, phase and position."""

import subprocess
import sys

import numpy as np
import pytest

from curriculum.data.order import permutation, record_order, window_index


@pytest.mark.parametrize("count", [0, 1, 2, 10, 1000])
def test_a_permutation_covers_everything_once(count):
    assert sorted(permutation(count, 3, "rag_qa").tolist()) == list(range(count))


def test_orders_differ_by_seed_phase_and_label():
    orders = [
        permutation(200, 1, "a"),
        permutation(200, 2, "a"),
        permutation(200, 1, "b"),
        permutation(200, 1, "a", "chunk", 0),
        permutation(200, 1, "a", "chunk", 1),
        permutation(200, 1, "a", "epoch", 1),
    ]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


def test_records_come_evenly_from_the_whole_file():
    first = permutation(10_000, 5, "retrieval_school")[:1000]
    quarters = np.bincount(first * 4 // 10_000, minlength=4)
    assert quarters.min() > 200  # 250 expected, standard deviation below 14


def test_the_same_order_in_another_process_that_drew_other_numbers_before():
    code = (
        "import numpy as np; np.random.seed(9); np.random.rand(7);"
        "from curriculum.data.order import permutation, window_index;"
        "print(permutation(8, 4, 'p').tolist(), [window_index(i, 5, 4, 'p') for i in range(20)])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = [window_index(i, 5, 4, "p") for i in range(20)]
    assert printed.stdout.strip() == f"{permutation(8, 4, 'p').tolist()} {expected}"


def test_epochs_cover_all_windows_once_and_the_first_keeps_the_prepared_order():
    count = 10
    epochs = [[window_index(e * count + i, count, 1, "p") for i in range(count)] for e in range(4)]
    assert epochs[0] == list(range(count))
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("stop", [4, 14, 16, 24])
def test_the_tail_after_any_position_is_that_of_the_uninterrupted_run(stop):
    uninterrupted = [window_index(position, 10, 1, "p") for position in range(30)]
    before = [window_index(position, 10, 1, "p") for position in range(stop)]
    window_index(3, 99, 8, "other")  # another phase is asked in between
    after = [window_index(position, 10, 1, "p") for position in range(stop, 30)]
    assert before + after == uninterrupted
    assert sorted(uninterrupted) == sorted(list(range(10)) * 3)


def test_no_window_of_an_empty_set():
    with pytest.raises(ValueError, match="no window at position 0 of a set of 0"):
        window_index(0, 0, 1, "p")


class TestWeightedSources:
    COUNTS, WEIGHTS = [1000, 100, 50], [0.7, 0.2, 0.1]

    def _kinds(self, rows):
        return np.searchsorted(np.cumsum(self.COUNTS), rows, side="right")

    def test_without_weights_it_is_a_permutation_of_everything(self):
        rows = record_order([3, 4], None, "stop", 1, "a")
        assert rows.tolist() == permutation(7, 1, "a").tolist()

    def test_stop_ends_with_the_first_source_that_is_used_up(self):
        rows = record_order(self.COUNTS, self.WEIGHTS, "stop", 1, "a")
        # 50 / 0.1 and 100 / 0.2 both last for 500 records
        assert np.bincount(self._kinds(rows)).tolist() == [350, 100, 50]
        assert len(set(rows.tolist())) == 500

    def test_repeat_goes_on_until_the_last_source_is_used_up(self):
        rows = record_order(self.COUNTS, self.WEIGHTS, "repeat", 1, "a")
        # 1000 / 0.7 records: 20% of them from a source of 100, 10% from one of 50
        assert np.bincount(self._kinds(rows)).tolist() == [1000, 286, 143]
        seen = np.bincount(rows, minlength=1150)
        assert (seen[:1000] == 1).all()
        assert set(seen[1000:1100].tolist()) == {2, 3}
        assert set(seen[1100:].tolist()) == {2, 3}

    def test_every_stretch_holds_the_sources_in_proportion(self):
        rows = record_order(self.COUNTS, self.WEIGHTS, "repeat", 1, "a")
        for start in range(0, 1400, 100):
            shares = np.bincount(self._kinds(rows[start : start + 100]), minlength=3)
            assert np.abs(shares - [70, 20, 10]).max() <= 2

    def test_weights_are_relative_and_the_order_depends_on_the_seed(self):
        rows = record_order(self.COUNTS, self.WEIGHTS, "stop", 1, "a").tolist()
        assert record_order(self.COUNTS, [7.0, 2.0, 1.0], "stop", 1, "a").tolist() == rows
        assert record_order(self.COUNTS, self.WEIGHTS, "stop", 2, "a").tolist() != rows
        assert record_order(self.COUNTS, self.WEIGHTS, "stop", 1, "b").tolist() != rows
