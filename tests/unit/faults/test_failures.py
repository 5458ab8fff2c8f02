from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curriculum.compose import compose
from curriculum.config import Config
from curriculum.errors import RunError
from curriculum.faults import failures


@pytest.fixture(scope="module")
def config() -> Config:
    return compose(["+plan=corrective", "profile=tiny"])


def fail(directory: Path, config: Config, attempt: str, **changes: Any) -> None:
    given = {"error": RuntimeError("out of memory: 12 MiB free"), "phase": "planning", "step": 120}
    given |= changes
    failures.record(directory, config, given["error"], attempt, given["phase"], given["step"])


def test_the_third_equal_failure_is_the_last(tmp_path: Path, config: Config) -> None:
    for number in range(3):
        failures.refuse_a_loop(tmp_path, config)
        error = RuntimeError(f"out of memory: {number} MiB free at 0x{number:x}f\nlong trace")
        fail(tmp_path, config, f"start {number}", error=error)
    with pytest.raises(RunError) as refused:
        failures.refuse_a_loop(tmp_path, config)
    told = str(refused.value)
    assert "\n" not in told
    for part in ("3 starts", "step 120", "planning", "RuntimeError", "out of memory: 2 MiB free"):
        assert part in told
    assert str(tmp_path / "failures.jsonl") in told


@pytest.mark.parametrize(
    "other",
    [
        {"step": 121},
        {"phase": "rag_qa"},
        {"error": ValueError("out of memory: 12 MiB free")},
        {"error": RuntimeError("out of luck")},
    ],
)
def test_a_different_failure_in_between_is_no_loop(
    tmp_path: Path, config: Config, other: dict[str, Any]
) -> None:
    fail(tmp_path, config, "a")
    fail(tmp_path, config, "b", **other)
    fail(tmp_path, config, "c")
    fail(tmp_path, config, "d")
    failures.refuse_a_loop(tmp_path, config)
    fail(tmp_path, config, "e")
    with pytest.raises(RunError):
        failures.refuse_a_loop(tmp_path, config)


def test_ranks_of_one_start_count_once(tmp_path: Path, config: Config) -> None:
    for _ in range(5):
        fail(tmp_path, config, "one start")
    failures.refuse_a_loop(tmp_path, config)


def test_a_change_is_a_new_try(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attempt in "abc":
        fail(tmp_path, config, attempt)
    smaller = replace(config, engine=replace(config.engine, micro_batch_tokens=64))
    failures.refuse_a_loop(tmp_path, smaller)
    elsewhere = replace(config, run=replace(config.run, grace_seconds=1.0))
    with pytest.raises(RunError):  # says nothing of what is computed
        failures.refuse_a_loop(tmp_path, elsewhere)
    never = replace(config, run=replace(config.run, max_same_failures=None))
    failures.refuse_a_loop(tmp_path, never)
    monkeypatch.setenv("WORLD_SIZE", "2")
    failures.refuse_a_loop(tmp_path, config)


def test_a_torn_or_strange_line_is_left_out(tmp_path: Path, config: Config) -> None:
    for attempt in "abc":
        fail(tmp_path, config, attempt)
    with (tmp_path / "failures.jsonl").open("ab") as file:
        file.write(b'{"attempt": 3}\n[]\n{"attempt": "d", "sett')
    with pytest.raises(RunError):
        failures.refuse_a_loop(tmp_path, config)
