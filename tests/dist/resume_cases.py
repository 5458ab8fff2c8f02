"""Saves, kills and faults, and whole plans, uninterrupted and interrupted, on one rank and on two.

Arguments: the file to write and a folder, then `main` or `seldom`, which fork what they need so
that everything is imported once; or under torchrun `leg RUN KILL_AT|end OVERRIDE...`. What two
ranks leave, one goes on with.
"""

import json
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import fault_cases
import kill_cases
import save_cases
import tiny
import torch
from plan_runs import Watch, final_weights, lay_out, plan, records, rows

from curriculum.engine.distributed import World, world

STILL = ("model.config.attention_dropout=0.0",)
SHORT = tuple(
    f"plan.phases.{name}.max_steps={n}" for name, n in (("words", 7), ("turns", 6), ("pairs", 3))
)
HANDED_ON_AT = 12
STEPS = 9  # of each of the three phases: three epochs of six windows, two a step
# within epochs, at their ends, before and after a phase's end, and in the last step
KILLS = {1: (2, 4, 6, 9, 10, 14, 18, 19, 24, 27), 2: (5, 9, 10, 21)}


def told(watches: list[Watch], checked: Any, ranks: World) -> dict[str, Any]:
    found: dict[str, Any] = {
        "records": [step for watch in watches for step in watch.records],
        "moments": [value for watch in watches for value in watch.moments],
        "steps": [watch.steps for watch in watches],
        "saves": [step for watch in watches for step in watch.saves],
    }
    if ranks.is_main:
        found["rows"] = rows(checked)
        final = checked.directory / "final"
        found["weights"] = final_weights(checked) if final.exists() else None
        found["saved"] = sorted(p.name for p in (checked.directory / "checkpoints").iterdir())
        found["ledger"] = [
            {key: row[key] for key in ("phase", "steps", "forward_tokens", "status")}
            for row in json.loads((checked.directory / "ledger.json").read_text())["rows"]
        ]
    return found


def interrupted(ranks: World, root: Path, run: str, kills: list[int], *overrides: str) -> Any:
    """A run that is ended in the middle of each of some steps and begun again."""
    watches = [Watch(end) for end in [*kills, None]]
    checked = plan(root, run, *overrides)
    for watch in watches:
        assert watch.run(checked, ranks) == (watch.kill_at is None)
    return told(watches, checked, ranks) | {
        "own_losses": ranks.gather([loss for watch in watches for loss in watch.own_losses])
    }


def resume(ranks: World, root: Path, kills: list[int]) -> dict[str, Any]:
    found = {
        "whole": interrupted(ranks, root, f"whole-{ranks.size}", []),
        "killed": interrupted(ranks, root, f"killed-{ranks.size}", kills),
    }
    if ranks.size == 2:
        leg(ranks, root, "handed-on", str(HANDED_ON_AT), list(STILL))
    else:
        all_kept = "checkpoint.keep_last=99"
        found["intervals"] = interrupted(ranks, root, "intervals", [], *SHORT, all_kept)
        found["still"] = interrupted(ranks, root, "still", [], *STILL)
        other = [*STILL, "engine.micro_batch_tokens=16"]
        found["handed on"] = leg(ranks, root, "handed-on", "end", other)
    return found


def masks(ranks: World, root: Path) -> dict[str, Any]:
    """Windows that are all alike, with dropout and without."""
    if ranks.is_main:
        lay_out(root, records() | {"text": [records()["text"][0]] * 12})
    ranks.barrier()
    short = ("plan.phases.turns.max_steps=1", "plan.phases.pairs.max_steps=1")
    return {
        "masks": interrupted(ranks, root, "masks", [5], *short),
        "no masks": interrupted(ranks, root, "no-masks", [], *short, *STILL),
    }


def leg(ranks: World, root: Path, run: str, end: str, overrides: list[str]) -> dict[str, Any]:
    checked = plan(root, run, *overrides)
    watch = Watch(None if end == "end" else int(end))
    watch.run(checked, ranks)
    return told([watch], checked, ranks)


def two(root: Path, rank: int, port: int, seldom: bool) -> dict[str, Any]:
    """One of the two ranks."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with world(tiny.ENGINE) as ranks:
        if seldom:
            return masks(ranks, root / "same")
        return save_cases.run(ranks, root / "saves", "two") | resume(ranks, root, list(KILLS[2]))


def one(root: Path, seldom: bool) -> dict[str, Any]:
    faults, damage = root / "faults", fault_cases.SELDOM if seldom else fault_cases.MAIN
    found: dict[str, Any] = {}
    with world(tiny.ENGINE) as ranks:
        if not seldom:
            found = save_cases.run(ranks, root / "saves", "one")
            found |= resume(ranks, root, list(KILLS[1]))
        fault_cases.leave(ranks, faults, damage)
    found["faults"] = fault_cases.damaged(faults, damage)
    return found if seldom else found | {"disks": fault_cases.disks(faults)}


def everything(root: Path, seldom: bool) -> dict[str, Any]:
    torch.set_num_threads(1)  # a process with other threads than its first one cannot be forked
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outs = [root / f"rank{rank}.json" for rank in range(2)]
    ranks = [partial(two, root, rank, port, seldom) for rank in range(2)]
    children = [kill_cases.fork(work, out) for work, out in zip(ranks, outs, strict=True)]
    first, _ = [kill_cases.joined(*child) for child in children]
    killed = kill_cases.run(root / "kills", kill_cases.SELDOM if seldom else kill_cases.MAIN)
    return {"2": first, "kills": killed, "1": one(root, seldom)}


def main(out: str, root: str, what: str, *arguments: str) -> None:
    if what != "leg":
        Path(out).write_text(json.dumps(everything(Path(root), seldom=what == "seldom")))
        return
    run, end, *overrides = arguments
    with world(tiny.ENGINE) as ranks:
        found = leg(ranks, Path(root), run, end, overrides)
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
