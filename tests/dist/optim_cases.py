"""What each gloo process runs for the optimizers. Rank 0 writes what it found.

Arguments: the file to write, a folder for checkpoints, and one of `all`, `resume`, `replicas`.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from curriculum import config as schema
from curriculum import objectives
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World, world
from curriculum.engine.model import build_lm, wrap
from curriculum.engine.step import Engine, StepResult
from curriculum.errors import RunError
import optim_reference as reference
import tiny


OTHERS = (("adamw", "muon"), ("muon", "adamw"), ("muon", "signsgd"), ("adamw", "sign"))


def engine(ranks: World, optim: schema.Optim, model: schema.Model | None = None) -> Engine:
    lm = build_lm(model or tiny.model_config(True), 0)
    return Engine(wrap(lm, tiny.ENGINE, ranks), ranks, tiny.ENGINE, optim)


def step(subject: Engine, number: int, objective: str = "causal", micro: int = 2) -> StepResult:
    if objective == "retrieval":
        windows = tiny.group_windows(tiny.groups(seed=number))
    else:
        windows = tiny.windows(reference.examples(number), 2)
    built = objectives.build("p", tiny.phase(objective, len(windows)))
    return subject.step(subject.micro_batches(windows, micro), built, reference.RATES[number])


def weights(subject: Engine) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("lm."): p.detach().full_tensor().clone()
        for name, p in subject.model.named_parameters()
    }


def moments(subject: Engine) -> dict[str, torch.Tensor]:
    return {
        f"{name.removeprefix('lm.')}/{kind}": getattr(m, "full_tensor", m.clone)().clone()
        for name, p in subject.model.named_parameters()
        for kind, m in subject.optimizer.state.get(p, {}).items()
    }


def plain(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: t.flatten().tolist() for name, t in tensors.items()}


def exact(subject: Engine) -> dict[str, str]:
    """Weights and moments, written so that equal means bit-equal."""
    tensors = weights(subject) | moments(subject)
    return {name: t.float().numpy().tobytes().hex() for name, t in tensors.items()}


def trajectories(ranks: World) -> Any:
    """Weights after some steps, in micro-batches of one window and of four."""
    found: dict[str, Any] = {}
    for name in ("muon",) if ranks.replicate > 1 else reference.OPTIMS:
        for micro in (1, 4):
            subject = engine(ranks, reference.OPTIMS[name])
            for number in range(reference.STEPS):
                step(subject, number, micro=micro)
            found[f"{name}-micro{micro}"] = plain(weights(subject))
    return found


def experts(ranks: World) -> Any:
    """One step of a model with three experts: two on the first rank, one on the second."""
    subject = engine(ranks, reference.OPTIMS["muon"], reference.MOE)
    step(subject, 0)
    return plain(weights(subject))


def untouched(ranks: World) -> Any:
    """A generative step, one of a phase that does not use the head, a generative step."""
    found = {}
    for name, optim in reference.OPTIMS.items():
        subject = engine(ranks, optim, tiny.model_config(False))
        step(subject, 0)
        before = exact(subject)
        step(subject, 1, "retrieval")
        between = exact(subject)
        step(subject, 2)
        after = exact(subject)
        found[name] = {
            "kept": sorted(n for n in before if before[n] == between[n]),
            "later": sorted(n for n in before if between[n] == after[n]),
            "all": sorted(before),
        }
    return found


def boundary(ranks: World) -> Any:
    """Two steps: moments carried, reset between, and by a new engine on the same model."""
    found = {}
    for name, optim in reference.OPTIMS.items():
        found[name] = {}
        for way in ("carry", "reset", "new"):
            subject = engine(ranks, optim)
            step(subject, 0)
            if way == "reset":
                subject.reset_optimizer()
            if way == "new":
                subject = Engine(subject.model, ranks, tiny.ENGINE, optim)
            step(subject, 1)
            found[name][way] = exact(subject)
    return found


def checkpoints(ranks: World, folder: Path) -> Any:
    """Two steps, saved, two more; and the same two more after loading. Also other optimizers."""
    found: dict[str, Any] = {}
    for name, optim in reference.OPTIMS.items():
        # untied, and the first step without the head: a parameter without moments
        subject, loaded = (engine(ranks, optim, tiny.model_config(False)) for _ in range(2))
        saved = folder / f"{name}-{ranks.size}"
        step(subject, 0, "retrieval")
        checkpoint.save(saved / "early", subject.model, subject.optimizer, {}, ranks)
        checkpoint.load(saved / "early", loaded.model, loaded.optimizer)
        early = sorted(moments(loaded))
        step(subject, 1)
        checkpoint.save(saved / "late", subject.model, subject.optimizer, {}, ranks)
        checkpoint.load(saved / "late", loaded.model, loaded.optimizer)
        states = [exact(subject), exact(loaded)]
        for one in (subject, loaded):
            step(one, 2)
            step(one, 3)
            states.append(exact(one))
        found[name] = {
            "equal": [states[0] == states[1], states[2] == states[3]],
            "early": early,
            "late": sorted(moments(loaded)),
            "weights": plain(weights(loaded)),
        }
    for kept, given in OTHERS:
        subject = engine(ranks, reference.OPTIMS[given], tiny.model_config(False))
        try:
            checkpoint.load(folder / f"{kept}-{ranks.size}/late", subject.model, subject.optimizer)
            found[f"{kept} into {given}"] = "loaded"
        except RunError as error:
            found[f"{kept} into {given}"] = str(error)
    return found


def resumed(ranks: World, folder: Path) -> Any:
    """The last two steps from checkpoints that two ranks wrote."""
    found = {}
    for name, optim in reference.OPTIMS.items():
        subject = engine(ranks, optim, tiny.model_config(False))
        checkpoint.load(folder / f"{name}-2/late", subject.model, subject.optimizer)
        step(subject, 2)
        step(subject, 3)
        found[name] = plain(weights(subject))
    return found


def main(out: str, folder: str, what: str) -> None:
    settings = replace(tiny.ENGINE, replicate=2) if what == "replicas" else tiny.ENGINE
    with world(settings) as ranks:
        found: dict[str, Any] = {"trajectories": trajectories(ranks), "experts": experts(ranks)}
        if what != "replicas":
            found["untouched"] = untouched(ranks)
            found["boundary"] = boundary(ranks)
            found["checkpoints"] = checkpoints(ranks, Path(folder))
        if what == "resume":
            found["resumed"] = resumed(ranks, Path(folder))
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
