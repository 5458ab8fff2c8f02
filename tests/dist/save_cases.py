"""What each gloo process runs for saves that overlap training: two processes save, and one that
starts later reads what they left."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tiny
import torch
from plan_runs import whole

from curriculum import objectives
from curriculum.config import Checkpoint
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World
from curriculum.engine.model import build_lm, wrap
from curriculum.engine.saves import Saves
from curriculum.engine.shards import Writer
from curriculum.engine.step import Engine
from curriculum.errors import RunError

POLICY = Checkpoint(every_steps=None, keep_last=2)
FROZEN = "layers.0.mlp.up_proj.weight"


def engine(ranks: World, tied: bool = False, **config: Any) -> Engine:
    """Untied, with one frozen matrix."""
    lm = build_lm(tiny.model_config(tied, **config), 0)
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(not name.endswith(FROZEN))
    return Engine(wrap(lm, tiny.ENGINE, ranks), ranks, tiny.ENGINE, tiny.OPTIM)


def step(subject: Engine, number: int, objective: str = "causal") -> str:
    if objective == "retrieval":
        windows = tiny.group_windows(tiny.groups(seed=number))
    else:
        windows = tiny.windows(tiny.examples(objective, seed=number), 2)
    built = objectives.build("p", tiny.phase(objective, len(windows)))
    return subject.step(subject.micro_batches(windows, 2), built, 1e-2).loss.hex()


def exact(subject: Engine) -> dict[str, str]:
    """Every weight and moment by name, as bytes."""
    found = {}
    for name, parameter in subject.model.named_parameters():
        kept = {"": parameter.detach(), **subject.optimizer.state.get(parameter, {})}
        for kind, tensor in kept.items():
            values = whole(tensor).clone().float().numpy()
            found[f"{name}/{kind}" if kind else name] = values.tobytes().hex()
    return found


@contextmanager
def writing(before: Callable[[], None], after: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Calls around the writing of this rank's shards, in the thread that writes them."""
    original = Writer.write_data

    def write(self: Writer, *rest: Any) -> Any:
        before()
        result = original(self, *rest)
        after()
        return result

    Writer.write_data = write  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writer.write_data = original  # type: ignore[method-assign]


def overlapping(ranks: World, folder: Path) -> Any:
    """Steps taken while a save is on its way, which only goes on after them, and the same steps
    without one."""
    plain, subject, loaded = (engine(ranks) for _ in range(3))
    losses = [step(plain, n) for n in range(5)]
    saves, trained = Saves(folder / "overlap", ranks, POLICY), threading.Event()
    saves.reserve(subject.model, subject.optimizer)
    places = set(saves._stager._kept)
    found = [step(subject, 0), step(subject, 1)]
    state, meta = exact(subject), {"rows": [1]}
    with writing(lambda: trained.wait(60)):
        saves.start(2, subject.model, subject.optimizer, meta)
        meta["rows"].append(2)
        found += [step(subject, n) for n in (2, 3, 4)]
        ahead = not (folder / "overlap" / "step_2").exists()
        trained.set()
        saves.wait()
    expected = places == set(saves._stager._kept)
    saves.close()
    directory = folder / "overlap" / "step_2"
    checkpoint.load(directory, loaded.model, loaded.optimizer)
    return {
        "losses": [losses, found],
        "weights": exact(plain) == exact(subject),
        "saved as it was": exact(loaded) == state,
        "training was ahead": all(ranks.gather(ahead)),
        "every place was there before the first step": expected,
        "meta": json.loads((directory / "meta.json").read_text())["rows"],
        "own group": saves._group is not torch.distributed.group.WORLD,
        "files": sorted(path.name for path in (directory / "state").iterdir()),
    }


def one_at_a_time(ranks: World, folder: Path) -> Any:
    """Three saves in a row: how many were written at once, and how long the later ones waited."""
    subject = engine(ranks)
    saves = Saves(folder / "row", ranks, POLICY)
    now, most = 0, 0

    def begin() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.3)

    def end() -> None:
        nonlocal now
        now -= 1

    with writing(begin, end):
        for number in (1, 2, 3):
            saves.start(number, subject.model, subject.optimizer, {})
        waited = saves.waited
        saves.wait()
    saves.close()
    kept = sorted(path.name for path in (folder / "row").iterdir())
    return {"most": ranks.gather(most), "waited": waited, "kept": kept, "written": saves.written}


def commit_after_the_last_rank(ranks: World, folder: Path) -> Any:
    """The last rank writes late. When the checkpoint appears, has it written?"""
    subject = engine(ranks)
    saves = Saves(folder / "late", ranks, POLICY)
    late, done = ranks.rank == ranks.size - 1, folder / "late.done"
    with writing(lambda: time.sleep(0.7 if late else 0.0), lambda: done.touch() if late else None):
        saves.start(1, subject.model, subject.optimizer, {})
        while not (folder / "late" / "step_1" / "COMMITTED").exists():
            time.sleep(0.005)
        written = done.exists()
        saves.wait()
    saves.close()
    return {"written before": written}


def a_rank_that_cannot_write(ranks: World, folder: Path) -> Any:
    """A good save, one that fails on the last rank alone, then a good one again."""
    subject = engine(ranks)
    saves = Saves(folder / "full", ranks, POLICY)

    def full() -> None:
        if ranks.rank == ranks.size - 1:
            raise OSError(28, "No space left on device", "/disk/x")

    problems, kept = [], []
    for number in (1, 2, 3):
        with writing(full if number == 2 else lambda: None):
            saves.start(number, subject.model, subject.optimizer, {})
            step(subject, number)
            problems.append(ranks.gather(saves.wait()))
        kept.append(sorted(path.name for path in (folder / "full").iterdir()))
    saves.close()
    good = ranks.gather(str(saves.good))
    return {"problems": problems, "kept": kept, "good": good, "said": saves.summary()}


def clocks(ranks: World, folder: Path) -> Any:
    """Whether a save is due, as told by clocks that differ between ranks."""
    found = {}
    policy = Checkpoint(every_steps=7, keep_last=1, every_minutes=2)
    for name, seconds in (("main is late", (125.0, 3.0)), ("the other is late", (3.0, 125.0))):
        times = iter([0.0, seconds[min(ranks.rank, 1)]])
        saves = Saves(folder / "clock", ranks, policy, clock=lambda times=times: next(times))
        found[name] = ranks.gather(saves.due(5))
        saves.close()
    saves = Saves(folder / "clock", ranks, policy, clock=lambda: 0.0)
    found["by steps"] = [saves.due(number) for number in (6, 7, 8, 14)]
    saves.close()
    return found


def left_for_others(ranks: World, folder: Path) -> Any:
    """Tied and untied models with moments, a head without, and a frozen matrix."""
    found = {}
    for tied in (True, False):
        subject = engine(ranks, tied)
        for number in range(3):
            step(subject, number, "retrieval")  # which gives an untied head no gradient
        checkpoint.save(folder / f"tied{tied}", subject.model, subject.optimizer, {}, ranks)
        found[f"tied{tied}"] = exact(subject)
    checkpoint.save(folder / "damaged", subject.model, subject.optimizer, {}, ranks)
    if ranks.is_main:
        flip(folder / "damaged" / "state" / "__1_0.distcp")
    ranks.barrier()
    try:
        checkpoint.load(folder / "damaged", subject.model, subject.optimizer)
        found["damaged"] = ["loaded"]
    except RunError as error:
        found["damaged"] = ranks.gather(str(error))
    return found


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def taken_over(ranks: World, folder: Path) -> Any:
    """What new processes read, and what they train from it; and models that do not fit."""
    found: dict[str, Any] = {}
    for tied in (True, False):
        subject = engine(ranks, tied)
        checkpoint.load(folder / f"tied{tied}", subject.model, subject.optimizer)
        found[f"tied{tied}"] = exact(subject)
        others = {"other tying": engine(ranks, not tied)}
        others["other width"] = engine(ranks, tied, intermediate_size=56)
        others["other depth"] = engine(ranks, tied, num_hidden_layers=1)
        for name, other in others.items():
            before = exact(other)
            try:
                checkpoint.load(folder / f"tied{tied}", other.model, other.optimizer)
                found[f"tied{tied} {name}"] = "loaded"
            except RunError as error:
                found[f"tied{tied} {name}"] = str(error)
            found[f"tied{tied} {name} untouched"] = exact(other) == before
    return found


def run(ranks: World, folder: Path, what: str) -> dict[str, Any]:
    """Results by case: `two` processes save, `one` that starts later reads."""
    cases = {
        "two": (
            overlapping,
            one_at_a_time,
            commit_after_the_last_rank,
            a_rank_that_cannot_write,
            clocks,
            left_for_others,
        ),
        "one": (taken_over,),
    }
    return {case.__name__: case(ranks, folder) for case in cases[what]}
