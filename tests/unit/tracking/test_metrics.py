"""`metrics.jsonl`: strict, kept through a kill, cut back to a checkpoint."""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from curriculum.errors import RunError
from curriculum.tracking.metrics import MetricsLog, MetricsRow, read_metrics, step_metrics


def row(step: int, loss: float | None = 1.5) -> MetricsRow:
    return MetricsRow(step, "rag_qa", step, loss, 1e-3, 0.25, 100, 40, 0.5)


def write(path: Path, count: int) -> None:
    with MetricsLog(path) as log:
        for step in range(1, count + 1):
            log.append(row(step, 1 / step))


def test_rows_come_back_and_are_on_disk_after_each_append(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (1, 2):
            log.append(row(step, 1 / 3))
            assert [json.loads(line) for line in path.read_text().splitlines()] == [
                asdict(row(s, 1 / 3)) for s in range(1, step + 1)
            ]
    assert list(read_metrics(path)[0]) == [
        "step",
        "phase",
        "phase_step",
        "loss",
        "lr",
        "grad_norm",
        "forward_tokens",
        "trained_tokens",
        "seconds",
    ]
    assert read_metrics(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_null(tmp_path: Path, value: float) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(row(1, value))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(path.read_text(), parse_constant=refuse)["loss"] is None
    assert "loss" not in step_metrics(row(1, value))


def test_rows_are_kept_up_to_a_step_of_their_phase_unchanged(tmp_path: Path) -> None:
    path, whole = tmp_path / "metrics.jsonl", tmp_path / "whole.jsonl"
    write(path, 7)
    write(whole, 4)
    with MetricsLog(path) as log:
        log.keep({"rag_qa": range(1, 5)})
        assert path.read_bytes() == whole.read_bytes()
        log.append(row(5))
        log.keep({"rag_qa": range(1, 10)})
    assert [r["step"] for r in read_metrics(path)] == [1, 2, 3, 4, 5]
    with MetricsLog(path) as log:
        log.keep({})
    assert path.read_bytes() == b""


def test_rows_move_up_where_a_phase_before_them_was_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    phases = ["a", "a", "b", "b", "b", "c", "c"]
    with MetricsLog(path) as log:
        for step, phase in enumerate(phases, 1):
            log.append(replace(row(step), phase=phase, phase_step=phases[:step].count(phase)))
        log.keep({"a": range(1, 3), "c": range(3, 5)})
    kept = [(r["step"], r["phase"], r["phase_step"]) for r in read_metrics(path)]
    assert kept == [(1, "a", 1), (2, "a", 2), (3, "c", 1), (4, "c", 2)]


@pytest.mark.parametrize("keep", [1, 20, 60])
def test_a_torn_last_line_is_ignored_cut_and_never_continued(tmp_path: Path, keep: int) -> None:
    path, whole = tmp_path / "metrics.jsonl", tmp_path / "whole.jsonl"
    write(path, 3)
    write(whole, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    torn = b"".join(lines[:2]) + lines[2][:keep]
    path.write_bytes(torn)
    assert [r["step"] for r in read_metrics(path)] == [1, 2]
    with MetricsLog(path) as log:
        assert path.read_bytes() == whole.read_bytes()
        log.append(row(3, 1 / 3))
    assert path.read_bytes() == b"".join(lines)
    # Torn while the log is open, e.g. by a second process that was killed.
    with MetricsLog(path) as log:
        path.write_bytes(torn)
        log.keep({"rag_qa": range(1, 4)})
    assert path.read_bytes() == whole.read_bytes()


def test_a_kill_between_two_rows_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    child = os.fork()
    if child == 0:
        log = MetricsLog(path)
        for step in (1, 2, 3):
            log.append(row(step))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert [r["step"] for r in read_metrics(path)] == [1, 2, 3]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{}\n" + lines[2])
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: "):
        read_metrics(path)


def test_step_metrics_give_the_rate() -> None:
    assert step_metrics(row(1)) == {
        "loss": 1.5,
        "lr": 1e-3,
        "grad_norm": 0.25,
        "forward_tokens": 100.0,
        "trained_tokens": 40.0,
        "tokens_per_second": 200.0,
    }


class FullDisk:
    """A file on a disk that takes `room` bytes and then no more."""

    def __init__(self, handle: Any, room: int) -> None:
        self.handle, self.room = handle, room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        taken = self.handle.write(data[: self.room])
        self.room -= taken
        return taken

    def close(self) -> None:
        self.handle.close()


def test_a_full_disk_is_told_once_and_loses_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.append(row(1))
    log._handle = disk = FullDisk(log._handle, 10)
    for step in (2, 3, 4):
        log.append(row(step))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "No space left on device" in message and str(path) in message
    assert [found["step"] for found in read_metrics(path)] == [1]  # the torn row is none
    disk.room = 10_000
    log.append(row(5))
    log.close()
    assert [found["step"] for found in read_metrics(path)] == [1, 2, 3, 4, 5]
