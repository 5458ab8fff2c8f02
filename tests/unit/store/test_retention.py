"""Which checkpoints stay: worked examples, and what must hold whatever the policy."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum import store
from curriculum.config import Checkpoint
from curriculum.store.retention import rotate, surplus


def kept(steps: list[int], ends: list[int] = (), newest: int | None = None, **policy) -> list[int]:
    settings = Checkpoint(**{"every_steps": 1, "keep_last": 1} | policy)
    gone = surplus(steps, ends, max(steps) if newest is None else newest, settings)
    return sorted(set(steps) - set(gone))


@pytest.mark.parametrize(
    ("policy", "ends", "stays"),
    [
        ({"keep_last": 1}, [], [120]),
        ({"keep_last": 3}, [], [90, 100, 120]),
        ({"keep_last": 99}, [], [9, 30, 55, 60, 90, 100, 120]),
        # multiples 50, 100 and the first ones after them
        ({"keep_last": 1, "keep_every": 50}, [], [55, 100, 120]),
        ({"keep_last": 1, "keep_phase_ends": True}, [9, 60], [9, 60, 120]),
        ({"keep_last": 1}, [9, 60], [120]),
        ({"keep_last": 2, "keep_every": 60, "keep_phase_ends": True}, [9], [9, 60, 100, 120]),
    ],
)
def test_worked_examples(policy: dict, ends: list[int], stays: list[int]) -> None:
    assert kept([9, 100, 30, 55, 60, 90, 120], ends, **policy) == stays


def test_later_steps_of_another_attempt_never_push_out_the_new_one() -> None:
    assert kept([20, 25, 40, 60], newest=25) == [25, 40, 60]


@given(
    st.sets(st.integers(1, 200), min_size=1, max_size=30),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_saved_one_by_one_or_looked_at_once_the_same_stay(
    steps: set[int], last: int, every: int | None
) -> None:
    """Deleting as one goes must lose nothing that the whole history would keep."""
    there: list[int] = []
    for step in sorted(steps):
        there = kept([*there, step], keep_last=last, keep_every=every)
        assert step in there
    assert there == kept(sorted(steps), keep_last=last, keep_every=every)


def test_rotation_deletes_directories_and_spares_phase_ends_and_pinned(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 10):
        temporary = tmp_path / ".new.tmp"
        (temporary / "state").mkdir(parents=True)
        (temporary / "state" / ".metadata").write_bytes(b"m")
        store.commit(temporary, tmp_path / f"step_{step}", {"phase_end": step == 2})
    policy = Checkpoint(every_steps=1, keep_last=1, keep_phase_ends=True)
    rotate(tmp_path, 10, policy, pinned=[tmp_path / "step_3"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_2", "step_3"]
