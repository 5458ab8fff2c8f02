"""What each gloo process runs of a model with an embedding head. Rank 0 writes what it found."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch
from model_reference import LORA, Tokenizer
from retrieval_cases import one_step

from curriculum import objectives
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World, world
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.export import export
from curriculum.engine.model import build_lm, wrap
from curriculum.engine.step import Engine

MODEL = replace(tiny.model_config(True), embedding_dim=12)
TEXTS = [[5, 6, 7], [8], [9, 10, 11, 12]]


def engine(ranks: World, model: Any = MODEL, weights: Path | None = None) -> Engine:
    wrapped = wrap(build_lm(model, 0, weights), tiny.ENGINE, ranks)
    return Engine(wrapped, ranks, tiny.ENGINE, tiny.OPTIM)


def full(subject: Engine) -> dict[str, torch.Tensor]:
    return {n: p.detach().full_tensor().clone() for n, p in subject.model.named_parameters()}


def train(subject: Engine, objective: str) -> None:
    windows = (
        tiny.group_windows(tiny.groups())
        if objective == "retrieval"
        else tiny.windows(tiny.examples(objective), 3)
    )
    built = objectives.build("p", tiny.phase(objective, len(windows)))
    subject.step(subject.micro_batches(windows, 2), built, 1e-2)


def steps(ranks: World) -> Any:
    """One SGD step of a step of six groups, and of one group: a rank then has nothing."""
    start = full(engine(ranks))["lm.embedding_head.weight"]
    found: dict[str, Any] = {"start": start.tolist()}
    for count in (6, 1):
        windows = tiny.group_windows(tiny.groups()[-count:])
        for micro in (1, 4, 99):
            phase = tiny.phase("retrieval", 6)
            found[f"groups{count}-micro{micro}"] = one_step(ranks, phase, windows, micro, MODEL)
    return found


def phases(ranks: World, folder: Path) -> Any:
    """Retrieval, then a phase without it, interrupted between; and what is exported."""
    name = "lm.embedding_head.weight"
    subject = engine(ranks)
    begun = full(subject)[name]
    train(subject, "retrieval")
    trained, saved = full(subject)[name], folder / f"saved{ranks.size}"
    checkpoint.save(saved, subject.model, subject.optimizer, {}, ranks)
    train(subject, "causal")
    kept = full(subject)[name]
    head = subject.model.get_parameter(name)
    moments = {k: float(v.sum()) for k, v in subject.optimizer.state[head].items() if k != "step"}
    train(subject, "retrieval")
    again = wrap(build_lm(MODEL, 0, empty=True), tiny.ENGINE, ranks)
    resumed = Engine(again, ranks, tiny.ENGINE, tiny.OPTIM)
    checkpoint.load(saved, resumed.model, resumed.optimizer)
    train(resumed, "causal")
    train(resumed, "retrieval")
    out = folder / f"out{ranks.size}"
    export(subject.model, Tokenizer(), out, ranks)
    embedded = Evaluator(subject.model, ranks, 40).embed(TEXTS)
    reloaded = Evaluator(engine(ranks, MODEL, out).model, ranks, 40).embed(TEXTS)
    adapted = engine(ranks, replace(MODEL, lora=LORA), out)
    before = full(adapted)
    train(adapted, "retrieval")
    after = full(adapted)
    return {
        "trained": not torch.equal(begun, trained),
        "kept": torch.equal(trained, kept),
        "moments": moments,
        "resumed": all(torch.equal(a, full(resumed)[n]) for n, a in full(subject).items()),
        "embedded": embedded.tolist(),
        "reloaded": bool((embedded == reloaded).all()),
        "moved with adapters": sorted(n for n in before if not torch.equal(before[n], after[n])),
    }


def main(out: str, replicate: str, folder: str) -> None:
    with world(replace(tiny.ENGINE, replicate=int(replicate))) as ranks:
        found = {"steps": steps(ranks), "phases": phases(ranks, Path(folder))}
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
