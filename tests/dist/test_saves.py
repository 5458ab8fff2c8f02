"""Saves overlap training and change nothing of it; a plan that is interrupted, anywhere, by
anything, and at any world size, is the plan at one go."""

import json
import os
import subprocess
import sys
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
from fault_cases import KILLED_AT
from kill_cases import MAIN, SELDOM
from kill_cases import STEPS as KILLED_STEPS
from launch import ROOT, launch
from plan_runs import lay_out
from resume_cases import HANDED_ON_AT, KILLS, STEPS, STILL
from save_cases import FROZEN

SCRIPT = "resume_cases.py"
SAVED = range(0, 3 * STEPS + 1, 3)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two processes found, then what one did, which goes on with what the two left."""
    return made(tmp_path_factory.mktemp("saves"), "main")


@pytest.fixture(scope="module")
def seldom(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same of cases that differ less from those or from tests without runs."""
    return made(tmp_path_factory.mktemp("seldom"), "seldom")


def made(root: Path, what: str) -> Any:
    lay_out(root)
    script, out = Path(__file__).with_name(SCRIPT), root / "found.json"
    done = subprocess.run(
        [sys.executable, str(script), str(out), str(root), what],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.fixture
def both(results: Any) -> dict[int, Any]:
    return {size: results[str(size)] for size in (1, 2)}


@pytest.fixture(params=[1, 2])
def found(request: pytest.FixtureRequest, both: dict[int, Any]) -> Any:
    return both[request.param] | {"kills": KILLS[request.param]}


def test_training_goes_on_and_the_copy_is_of_the_moment(both: dict[int, Any]) -> None:
    got = both[2]["overlapping"]
    assert got["losses"][0] == got["losses"][1]
    assert got["weights"]
    assert got["training was ahead"]
    assert got["every place was there before the first step"]
    assert got["saved as it was"]
    assert got["meta"] == [1]
    assert got["own group"]
    assert got["files"] == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def test_one_save_at_a_time(both: dict[int, Any]) -> None:
    got = both[2]["one_at_a_time"]
    assert got["most"] == [1, 1]
    assert got["waited"] > 0.6 - 0.05  # the second and the third waited for one of 0.3 s each
    assert got["written"] == 3
    assert got["kept"] == ["step_2", "step_3"]


def test_committed_only_once_every_rank_has_written(both: dict[int, Any]) -> None:
    assert both[2]["commit_after_the_last_rank"]["written before"]


def test_a_rank_that_cannot_write_costs_a_checkpoint_and_nothing_else(both: dict[int, Any]) -> None:
    got = both[2]["a_rank_that_cannot_write"]
    first, second, third = got["problems"]
    assert first == third == [None, None]
    assert second == ["No space left on device: /disk/x (rank 1)"] * 2
    assert got["kept"] == [["step_1"], ["step_1"], ["step_1", "step_3"]]
    assert all(path.endswith("full/step_3") for path in got["good"])
    written, failed = got["said"]
    assert written.startswith("checkpoints: 2 written")
    assert failed.startswith("checkpoints: 1 not written (No space left on device")


def test_the_clock_of_the_first_rank_counts_for_all(both: dict[int, Any]) -> None:
    got = both[2]["clocks"]
    assert got["main is late"] == [True, True]
    assert got["the other is late"] == [False, False]
    assert got["by steps"] == [False, True, False, True]


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_process_reads_every_weight_and_moment(both: dict[int, Any], tied: bool) -> None:
    saved, read = both[2]["left_for_others"][f"tied{tied}"], both[1]["taken_over"][f"tied{tied}"]
    assert read == saved
    names = {name.partition("/")[0] for name in saved}
    steps = {n.removesuffix("/step"): v for n, v in saved.items() if n.endswith("/step")}
    head = set() if tied else {"lm.lm_head.weight"}  # which had no gradient
    assert names - set(steps) == head | {f"lm.model.{FROZEN}"}
    assert set(steps.values()) == {"00004040"}  # 3.0 as float32: three steps were taken


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("other tying", "lm.lm_head.weight"),
        ("other width", "[48, 32] there and [56, 32] here"),
        ("other depth", "parameters differ"),
    ],
)
def test_another_model_is_refused_before_anything_is_read(
    both: dict[int, Any], tied: bool, other: str, said: str
) -> None:
    message = both[1]["taken_over"][f"tied{tied} {other}"]
    assert "holds another model" in message and said in message
    assert "give model= as it was" in message and "\n" not in message
    assert both[1]["taken_over"][f"tied{tied} {other} untouched"]


def test_a_flipped_bit_in_another_rank_s_shard_is_named_on_every_rank(both: dict[int, Any]) -> None:
    messages = both[2]["left_for_others"]["damaged"]
    assert len(messages) == 2 and len(set(messages)) == 1
    assert "broken checkpoint: state/__1_0.distcp has changed" in messages[0]


@pytest.mark.parametrize("place", MAIN)
def test_killed_in_a_save_the_newest_whole_checkpoint_leads_to_the_same_weights(
    results: Any, place: str
) -> None:
    assert_as_if_not_killed(results["kills"], place)


@pytest.mark.slow
@pytest.mark.parametrize("place", SELDOM)
def test_killed_anywhere_else_in_a_save(seldom: Any, place: str) -> None:
    assert_as_if_not_killed(seldom["kills"], place)


def assert_as_if_not_killed(kills: Any, place: str) -> None:
    got, whole = kills[place], kills["never killed"]
    assert got["killed"]
    assert got["resumed"]["began at"] == got["newest"], got["resumed"]
    assert got["resumed"]["weights"] == whole["weights"]
    assert got["resumed"]["left"] == whole["left"] == [f"step_{KILLED_STEPS}"]


def test_losses_rates_norms_and_weights_are_bit_equal(found: Any) -> None:
    assert [row["step"] for row in found["whole"]["rows"]] == list(range(1, 3 * STEPS + 1))
    assert found["killed"]["rows"] == found["whole"]["rows"]
    assert found["killed"]["weights"] == found["whole"]["weights"]
    assert found["killed"]["ledger"] == found["whole"]["ledger"]


def latest(run: dict[str, Any], what: str) -> list[Any]:
    """What was recorded of every step, of those taken twice the second time."""
    numbers = [number for steps in run["steps"] for number in steps]
    return list(dict(sorted(dict(zip(numbers, run[what], strict=True)).items())).values())


def test_every_epoch_trains_on_every_record_once_in_the_same_order(found: Any) -> None:
    whole = found["whole"]["records"]
    for phase, count in enumerate((12, 6, 6)):
        for epoch in range(3):
            first = phase * STEPS + epoch * 3
            seen = [r for step in whole[first : first + 3] for window in step for r in window]
            assert sorted(seen) == list(range(count)), (phase, epoch)
    assert latest(found["killed"], "records") == whole


def test_an_interruption_costs_the_steps_since_the_last_save(found: Any) -> None:
    """A step in which the process ends is not saved, even where a save was due after it."""
    begun = [steps[0] for steps in found["killed"]["steps"]]
    assert begun == [1, *(max(n for n in SAVED if n < kill) + 1 for kill in found["kills"])]
    assert [steps[-1] for steps in found["killed"]["steps"]] == [*found["kills"], 3 * STEPS]


def test_rates_follow_each_phase_s_own_curve(found: Any) -> None:
    rates = [row["lr"] for row in found["killed"]["rows"]]
    for step in range(STEPS):
        fall = 0.1 + 0.9 * 0.5 * (1 + cos(pi * max(0, step - 4) / 5))
        assert rates[step] == pytest.approx(1e-2 * min((step + 1) / 4, fall))
        assert rates[STEPS + step] == 1e-2
        wsd = min(1.0, (step + 1) / 3, 1 - max(0, step - 4) / 5)
        assert rates[2 * STEPS + step] == pytest.approx(1e-2 * wsd)


def test_moments_are_empty_exactly_where_the_plan_says(found: Any) -> None:
    whole = found["whole"]["moments"]
    assert [step for step, value in enumerate(whole) if value == "none"] == [0, 2 * STEPS]
    assert latest(found["killed"], "moments") == whole


def test_checkpoints_of_the_end(found: Any) -> None:
    assert found["whole"]["saves"] == list(SAVED[1:])
    assert found["whole"]["saved"] == found["killed"]["saved"] == ["step_24", "step_27"]


def test_phase_ends_are_saved_once_whatever_the_interval(both: dict[int, Any]) -> None:
    """Phases of 7, 6 and 3 steps, saved every third step of a phase."""
    assert both[1]["intervals"]["saves"] == [3, 6, 7, 10, 13, 16]
    assert set(both[1]["intervals"]["saved"]) == {f"step_{n}" for n in (3, 6, 7, 10, 13, 16)}


@pytest.mark.slow
def test_ranks_drop_out_different_units_before_and_after(seldom: Any) -> None:
    """Both ranks train on the same text, so that only what is dropped tells their losses apart."""
    one, two = seldom["2"]["masks"]["own_losses"]
    assert len(one) == len(two) > STEPS
    assert all(a != b for a, b in zip(one[: STEPS + 1], two[: STEPS + 1], strict=True))
    one, two = seldom["2"]["no masks"]["own_losses"]
    assert one[:STEPS] == two[:STEPS]


def assert_close(rows: list[Any], reference: list[Any]) -> None:
    assert len(rows) == len(reference)
    for row, expected in zip(rows, reference, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-4), row["step"]
        assert [row[key] for key in ("step", "phase_step", "lr", "forward_tokens")] == [
            expected[key] for key in ("step", "phase_step", "lr", "forward_tokens")
        ]


def test_two_ranks_hand_on_to_one(both: dict[int, Any]) -> None:
    """Left in the middle of a step, and gone on with another micro-batch size."""
    moved, still = both[1]["handed on"], both[1]["still"]
    (steps,) = moved["steps"]
    assert steps == list(range(max(n for n in SAVED if n < HANDED_ON_AT) + 1, 3 * STEPS + 1))
    assert moved["records"] == still["records"][steps[0] - 1 :]
    assert_close(moved["rows"], still["rows"])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("marker alone", "cannot be read (No such file or directory)"),
        ("flipped bit", "state/__0_0.distcp has changed since it was written"),
        ("other model", "holds another model"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    both: dict[int, Any], damage: str, said: str
) -> None:
    assert_the_one_before_it_used(both[1]["faults"], damage, said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("truncated shard", "state/__0_0.distcp has"),
        ("no index", "state/.metadata is missing"),
        ("other schema", "schema 1, this version reads 2"),
        ("no marker", None),  # which is no checkpoint, and nothing to tell of
    ],
)
def test_a_checkpoint_damaged_in_other_ways(seldom: Any, damage: str, said: str | None) -> None:
    assert_the_one_before_it_used(seldom["1"]["faults"], damage, said)


def assert_the_one_before_it_used(faults: Any, damage: str, said: str | None) -> None:
    got, sound = faults[damage], faults["sound"]
    assert got["code"] == sound["code"] == 0
    assert f"continuing after step {KILLED_AT - 2} (words)" in sound["lines"]
    assert f"continuing after step {KILLED_AT - 4} (words)" in got["lines"]
    named = [line for line in got["lines"] if "checkpoints/step_4" in line]
    assert len(named) == (said is not None), named
    assert said is None or ("not used" in named[0] and said in named[0])
    assert not any("Traceback" in line for line in got["lines"])
    assert got["rows"] == sound["rows"] and got["weights"] == sound["weights"]
    assert got["saved"] == sound["saved"] == ["step_10", "step_2", "step_4", "step_6", "step_8"]


@pytest.mark.parametrize(
    ("fault", "said", "refused"),
    [
        ("full disk", "are free in", 4),
        ("filled up", "No space left on device", 4),
        ("read-only", "Read-only file system", 4),
    ],
)
def test_a_disk_that_takes_no_more_costs_checkpoints_not_the_run(
    both: dict[int, Any], fault: str, said: str, refused: int
) -> None:
    got, sound = both[1]["disks"][fault], both[1]["faults"]["sound"]
    if got is None:
        pytest.skip("needs the right to mount a file system")
    assert got["code"] == 0
    lines = [line for line in got["lines"] if "not saved:" in line]
    assert len(lines) == refused, got["lines"]
    assert all(said in line and "training goes on" in line for line in lines)
    assert all("checkpoints/step_2" in line for line in lines)  # the last good one
    (summary,) = [line for line in got["lines"] if "not written" in line]
    assert f"{refused} not written" in summary and "checkpoints/step_2" in summary
    assert not any("Traceback" in line for line in got["lines"])
    assert got["saved"] == ["step_2"]
    assert got["rows"] == sound["rows"] and got["weights"] == sound["weights"]


@pytest.mark.slow
def test_two_ranks_then_one_then_four_for_fifty_steps_each(tmp_path: Path) -> None:
    lay_out(tmp_path)
    long = [f"plan.phases.{name}.epochs=17" for name in ("words", "turns", "pairs")]
    settings = [*STILL, *long, "checkpoint.every_steps=10", "optim.lr=1e-3"]

    def leg(size: int, run: str, end: str) -> Any:
        out = tmp_path / f"{run}-{size}.json"
        return launch(size, out, str(tmp_path), "leg", run, end, *settings, script=SCRIPT)

    legs = [leg(2, "moved", "51"), leg(1, "moved", "101"), leg(4, "moved", "end")]
    still = leg(1, "still", "end")
    # phases of 51 steps, saved after 10, 20 ... of each: later legs begin after 50 and 51 + 40
    assert legs[0]["records"] == still["records"][:51]
    assert legs[1]["records"] == still["records"][50:101]
    assert legs[2]["records"] == still["records"][91:]
    assert_close(legs[2]["rows"], still["rows"])
