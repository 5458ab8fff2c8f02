"""Best-fit decreasing against its definition, written out slowly."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curriculum.data.pack import pack


def _slow_best_fit_decreasing(lengths: list[int], capacity: int) -> list[int]:
    """Loads of the windows, by a search over all open windows per item."""
    loads: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [place for place, load in enumerate(loads) if load + length <= capacity]
        if fitting:
            loads[max(fitting, key=lambda place: loads[place])] += length
        else:
            loads.append(length)
    return loads


@given(st.integers(1, 60).flatmap(
    lambda cap: st.tuples(st.just(cap), st.lists(st.integers(1, cap), max_size=80))
))  # fmt: skip
@settings(deadline=None)
def test_every_index_once_within_capacity_and_as_full_as_the_definition(case):
    capacity, lengths = case
    windows = pack(np.array(lengths, dtype=np.int64), capacity)
    placed = [int(index) for window in windows for index in window]
    assert sorted(placed) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in window) for window in windows]
    assert all(0 < load <= capacity for load in loads)
    assert sorted(loads) == sorted(_slow_best_fit_decreasing(lengths, capacity))


def test_known_packing():
    windows = pack(np.array([6, 5, 4, 3, 2]), 10)
    assert [window.tolist() for window in windows] == [[0, 2], [1, 3, 4]]


def test_nothing_to_pack():
    assert pack(np.zeros(0, dtype=np.int64), 8) == []


@pytest.mark.parametrize("length", [0, 9])
def test_lengths_that_fit_no_window_are_refused(length):
    with pytest.raises(ValueError, match=r"do not fit 1\.\.8"):
        pack(np.array([3, length]), 8)


def test_log_normal_lengths_fill_windows_fast():
    lengths = np.random.default_rng(0).lognormal(5.5, 0.8, 50_000).astype(np.int64)
    lengths = np.clip(lengths, 1, 2048)
    start = time.perf_counter()
    windows = pack(lengths, 2048)
    seconds = time.perf_counter() - start
    assert lengths.sum() / (len(windows) * 2048) > 0.98
    assert lengths.sum() / seconds > 5e6
