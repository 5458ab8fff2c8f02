"""SIGTERM and SIGINT at any moment: exit code 75, nothing half-done, the same command goes on."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_plan import RUN, command, committed, rows, weights
from faults import Server, Start, start, wait_until

# a second or more of decoding after the first phase; weights do not feel it
SLOW_PROBE = ("probes.generation_max_tokens=400",)


@pytest.fixture
def root(laid_out: Path, tmp_path: Path) -> Path:
    shutil.copytree(laid_out, tmp_path / "here")
    return tmp_path / "here"


def assert_stopped(one: Start, ranks: int, seconds: float = 20.0) -> None:
    began = time.monotonic()
    assert one.wait(seconds) == [75] * ranks, one.text()
    assert time.monotonic() - began < seconds
    assert "the same command goes on" in one.text()
    assert "Traceback" not in one.text() and "error:" not in one.text(), one.text()


def assert_goes_on(server: Server, root: Path, reference: Path, ranks: int) -> None:
    last = start(server, root, command(*SLOW_PROBE), ranks=ranks)
    assert last.wait() == [0] * ranks, last.text()
    assert weights(root) == weights(reference)
    assert rows(root) == rows(reference)
    for name in ("talk_5", "prose_15"):
        found, whole = (sorted(p.name for p in (d / RUN / "probes" / name).iterdir())
                        for d in (root, reference))  # fmt: skip
        assert found == whole


def test_while_data_is_prepared(server: Server, root: Path) -> None:
    moment = r"os\.rename cache/windows/\w+/\.chunk_00000"
    one = start(server, root, command(), die_on=moment, die_at=2, die_by=signal.SIGTERM)
    assert_stopped(one, 1)
    assert not (root / RUN).exists()  # neither a lock nor an empty directory


@pytest.mark.slow
def test_within_a_step_and_within_a_save(
    server: Server, root: Path, whole: Callable[[int], Path]
) -> None:
    one = start(server, root, command(*SLOW_PROBE))
    wait_until(lambda: len(rows(root)) >= 2)
    one.signal(signal.SIGINT)
    assert_stopped(one, 1)
    assert committed(root)[-1] == rows(root)[-1]["step"] < 15
    moment = r"open run/checkpoints/\.step_9\.tmp/state"
    again = start(
        server, root, command(*SLOW_PROBE), die_on=moment, die_at=1, die_by=signal.SIGTERM
    )
    assert_stopped(again, 1)
    assert committed(root)[-1] == rows(root)[-1]["step"]
    assert_goes_on(server, root, whole(1), 1)


def test_on_one_rank_while_answers_are_generated(
    server: Server, root: Path, whole: Callable[[int], Path]
) -> None:
    """The signal comes to rank 1 alone, after the last step of the first phase."""
    one = start(server, root, command(*SLOW_PROBE), ranks=2)
    wait_until(lambda: len(rows(root)) == 5)
    time.sleep(0.4)
    one.signal(signal.SIGTERM, rank=1)
    assert_stopped(one, 2)
    assert [row["step"] for row in rows(root)] == [1, 2, 3, 4, 5]
    assert committed(root)[-1] == 5
    assert not (root / RUN / "probes").exists()
    assert_goes_on(server, root, whole(2), 2)


@pytest.mark.slow
def test_a_second_signal_ends_at_once(
    server: Server, root: Path, whole: Callable[[int], Path]
) -> None:
    """It comes while the state is saved that the first one asked for."""
    moment = r"open run/checkpoints/\.step_2\.tmp/state"
    one = start(server, root, command(*SLOW_PROBE), die_on=moment, die_at=1, die_by=signal.SIGSTOP)
    wait_until(lambda: (root / RUN / "checkpoints" / ".step_2.tmp").exists())
    time.sleep(0.5)
    one.signal(signal.SIGTERM)
    one.signal(signal.SIGCONT)
    time.sleep(0.02)
    one.signal(signal.SIGTERM)
    ended = one.wait(20)
    assert ended == [75], one.text()
    assert_goes_on(server, root, whole(1), 1)
