"""Runs that are killed again and again, at moments of every kind, and end as if nothing had been.

The short campaign kills at moments that are named; the long one at random ones, by the hundred, and
writes its counts to `fault_campaign.json` (in `FAULT_REPORT`, if that names a folder).
"""

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from fault_plan import DUE, INTERVAL, RUN, TOTAL, command, committed, rows, weights
from faults import Server, Start, start

# kinds of moments by what is about to be done to which file, the first that fits
KINDS = {
    "within a save": r"run/checkpoints/\.step",
    "deleting old checkpoints": r"run/checkpoints|\.distcp|meta\.json|COMMITTED|\.metadata| state$",
    "store write": r"store/",
    "preparation": r"cache/|data/|tokenizer",
    "probe results": r"run/probes",
    "export": r"run/\.?final",
    "start and record of the run": r"run",
}


def place(laid_out: Path, root: Path) -> Path:
    """A directory with nothing but data, tokenizer and plan."""
    shutil.copytree(laid_out, root)
    return root


def ledger(root: Path) -> list[tuple[str, int, int]]:
    found = json.loads((root / RUN / "ledger.json").read_text())["rows"]
    return [(row["phase"], row["steps"], row["forward_tokens"]) for row in found]


def assert_as_if_nothing_had_been(root: Path, reference: Path) -> None:
    assert weights(root) == weights(reference)
    assert rows(root) == rows(reference)
    assert [row["step"] for row in rows(root)] == list(range(1, TOTAL + 1))
    assert ledger(root) == ledger(reference)
    left = [p.name for p in (root / RUN).rglob("*") if p.name.endswith(".tmp")]
    assert left == []


@dataclass(frozen=True)
class Loss:
    """What a kill costs, judged by rows, markers and the plan: `steps` that were taken and that no
    checkpoint holds, `beside` of them since the newest save began, if that one did not end."""

    steps: int
    beside: int

    @property
    def bound(self) -> int:
        return INTERVAL + self.beside


def loss(root: Path) -> Loss:
    """A save that is due begins before the next step is taken, and only once the one before it is
    committed. So after a row beyond a due step all saves but that one are there."""
    taken, held = max([row["step"] for row in rows(root)], default=0), max([0, *committed(root)])
    begun = [0, *(due for due in DUE if due < taken)]
    assert held >= begun[max(0, len(begun) - 2)], (held, taken)
    return Loss(max(0, taken - held), taken - begun[-1] if held < begun[-1] else 0)


def assert_no_more_lost(root: Path) -> Loss:
    """At most one interval, and the steps that were taken while a save was written."""
    found = loss(root)
    assert found.steps <= found.bound, found
    assert found.beside <= INTERVAL, found
    return found


def assert_goes_on_from(held: list[int], text: str) -> None:
    """The newest checkpoint that there was is the one that was used."""
    for step in re.findall(r"continuing after step (\d+)", text):
        assert int(step) == max(held), (step, held)


def assert_said_nothing_wrong(text: str) -> None:
    assert "Traceback" not in text, text
    assert "error:" not in text, text


# in the order in which one run comes by them
MOMENTS = [
    r"os\.rename cache/windows/\w+/\.chunk_00000",
    r"os\.rename run/checkpoints/\.step_4\.tmp",
    r"os\.link .*meta\.json|os\.mkdir store/\.\w+\.\d+\.tmp/state",
    r"open run/probes/pairs_9",
    r"os\.rename run/\.final\.tmp",
]


def test_killed_at_five_moments_of_a_run(
    server: Server, laid_out: Path, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    root = place(laid_out, tmp_path / "run_here")
    for moment in MOMENTS:
        held = committed(root)
        one = start(server, root, command(), die_on=moment, die_at=1)
        assert one.wait() == [-signal.SIGKILL], (moment, one.text())
        assert_goes_on_from(held, one.text())
        assert_said_nothing_wrong(one.text())
        assert_no_more_lost(root)
    last = start(server, root, command())
    assert last.wait() == [0], last.text()
    assert "taken over from process" in last.text()
    assert_said_nothing_wrong(last.text())
    assert_as_if_nothing_had_been(root, whole(1))


def test_a_rank_killed_while_both_save(
    server: Server, laid_out: Path, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    root = place(laid_out, tmp_path / "run_here")
    moment = r"open run/checkpoints/\.step_7\.tmp/state"
    one = start(server, root, command(), ranks=2, die_on=moment, die_at=1, doomed=1)
    assert one.wait(60) == [1, -signal.SIGKILL], one.text()
    assert "lost another rank" in one.text() and "Traceback" not in one.text()
    assert_no_more_lost(root)
    last = start(server, root, command(), ranks=2)
    assert last.wait() == [0, 0], last.text()
    assert_said_nothing_wrong(last.text())
    assert_as_if_nothing_had_been(root, whole(2))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_kills(
    server: Server, laid_out: Path, whole: Callable[[int], Path], tmp_path: Path
) -> None:
    wanted = int(os.environ.get("FAULT_KILLS", "200"))
    seed = int(os.environ.get("FAULT_SEED", "1"))
    draw = random.Random(seed)
    kinds, by_ranks, runs, losses = Counter(), Counter(), Counter(), Counter()
    starts = 0
    while sum(kinds.values()) < wanted:
        ranks = 1 + sum(runs.values()) % 2
        root = place(laid_out, tmp_path / f"run_{sum(runs.values())}")
        for _ in range(40):
            starts += 1
            before, held = rows(root), committed(root)
            one, ended = killed(server, root, ranks, draw)
            assert "Traceback" not in one.text(), one.text()
            assert_goes_on_from(held, one.text())
            if ended == [0] * ranks:
                break
            assert -signal.SIGKILL in ended, (ended, one.text())
            others = [code for code in ended if code != -signal.SIGKILL]
            assert set(others) <= {0, 1, 75}, (ended, one.text())
            kinds[kind_of(root)] += 1
            by_ranks[ranks] += 1
            # a start that died before its first step shows what the one before it lost
            losses[assert_no_more_lost(root) if rows(root) != before else Loss(0, 0)] += 1
        assert ended == [0] * ranks, "forty starts did not end it"
        assert_as_if_nothing_had_been(root, whole(ranks))
        runs[ranks] += 1
        shutil.rmtree(root)
    report = {
        "seed": seed,
        "kills": sum(kinds.values()),
        "kills_by_ranks": by_ranks,
        "kills_by_moment": kinds,
        "starts": starts,
        "runs_that_ended": runs,
        "final_weights_bit_equal": sum(runs.values()),
        "checkpoint_interval": INTERVAL,
        "steps_lost_by_a_kill": counted(losses, lambda loss: loss.steps),
        "of_which_taken_beside_a_save": counted(losses, lambda loss: loss.beside),
        "kills_that_lost_more_than_an_interval": sum(
            n for loss, n in losses.items() if loss.steps > INTERVAL
        ),
        "kills_beyond_an_interval_and_the_steps_beside_a_save": sum(
            n for loss, n in losses.items() if loss.steps > loss.bound
        ),
    }
    folder = Path(os.environ.get("FAULT_REPORT", tmp_path))
    (folder / "fault_campaign.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def counted(losses: Counter[Loss], what: Callable[[Loss], int]) -> dict[str, int]:
    """How many kills lost how many steps."""
    found: Counter[int] = Counter()
    for one, times in losses.items():
        found[what(one)] += times
    return {str(steps): found[steps] for steps in sorted(found)}


def killed(
    server: Server, root: Path, ranks: int, draw: random.Random
) -> tuple[Start, list[int | None]]:
    """A start that is killed at a random moment, unless it ends before."""
    doomed = draw.randrange(ranks)
    arguments = command("run.grace_seconds=1")
    if draw.random() < 0.6:  # right before one of the things that it does to files
        at = draw.randint(1, 400)
        one = start(server, root, arguments, ranks=ranks, die_at=at, doomed=doomed)
        ended = one.wait_for(doomed, 120)
    else:  # at any moment, within the interpreter or outside
        one = start(server, root, arguments, ranks=ranks, doomed=doomed)
        ended = one.wait_for(doomed, draw.uniform(0.1, 6.0))
        if ended is None:
            one.signal(signal.SIGKILL, doomed)
            ended = one.wait_for(doomed, 10)
    return one, [ended if n == doomed else rest(one, n, ended == 0) for n in range(ranks)]


def rest(one: Start, rank: int, well: bool) -> int | None:
    """How another rank ends: by itself, or, where it still waits for the dead one to appear, by the
    SIGTERM that torchrun would send."""
    ended = one.wait_for(rank, 60 if well else 10)
    if ended is None:
        one.signal(signal.SIGTERM, rank)
        ended = one.wait_for(rank, 30)
    return ended


def kind_of(root: Path) -> str:
    """What the process that died was about to do, by its last event."""
    lines = (root / "events.txt").read_text().splitlines()
    last = lines[-1] if lines else ""
    return next((kind for kind, fits in KINDS.items() if re.search(fits, last)), "start-up")
