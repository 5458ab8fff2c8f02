"""Moments are carried or forgotten exactly where the plan says, over epochs and resumes."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_plan import phase, rows, run, run_broken_off, watch_steps, write


def plan() -> dict[str, dict[str, Any]]:
    """Two epochs a phase, of two steps each: kept by the second phase, forgotten by the third."""
    two = {"steps": None, "epochs": 2.0}
    return {
        "p": phase(**two),
        "q": phase(**two),
        "r": phase(optimizer_state="reset", **two),
        "s": phase("p", steps=2, optimizer_state="reset"),
        "t": phase("p", steps=2),
        "m": {"objective": "merge", "after": ["r", "s", "t"]},
        "u": phase(steps=2),
    }


def prepare(root: Path) -> None:
    """Four records a phase, each a window of its own."""
    for name in "pqrstu":
        file = root / "data" / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True, parents=True)
        texts = [f"amber bells carry dusty eaves grain hills jars kept {w}" for w in "abcd"]
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    write(root, plan())


def momentum(engine: Any) -> float:
    """Sum of the magnitudes of all first moments; 0 where there are none."""
    states = engine.optimizer.state.values()
    return sum(float(s["exp_avg"].full_tensor().abs().sum()) for s in states if "exp_avg" in s)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    root = tmp_path_factory.mktemp("whole")
    prepare(root)
    seen: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        watch_steps(patch, lambda engine: seen.append(momentum(engine)))
        assert run(root) == 0
    assert [row["phase"] for row in rows(root)] == list("ppppqqqqrrrrssttuu")
    return seen


def test_zero_exactly_where_the_plan_says(whole: list[float]) -> None:
    """p begins with nothing, r and s forget, u follows a merge; t goes on with what p had."""
    assert [n for n, value in enumerate(whole) if value == 0] == [0, 8, 12, 16]
    assert whole[14] == whole[4] > 0


@pytest.mark.parametrize("step", [4, 5, 9, 13, 17])
def test_alike_after_a_resume_around_the_switch(
    whole: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    prepare(tmp_path)
    run_broken_off(tmp_path, monkeypatch, step)
    seen: list[float] = []
    watch_steps(monkeypatch, lambda engine: seen.append(momentum(engine)))
    assert run(tmp_path) == 0
    assert len(seen) >= len(whole) - step + 1
    assert seen == whole[-len(seen) :]
