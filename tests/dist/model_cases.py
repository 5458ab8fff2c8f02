"""What each gloo process runs for the models. Rank 0 writes what it found.

Arguments: the file to write, a folder, the number of replicas, and the cases to run.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import model_reference as reference
import tiny
import torch
from torch.distributed.checkpoint import FileSystemReader

from curriculum import config as schema
from curriculum import objectives
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World, world
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.export import export
from curriculum.engine.model import build_lm, sharded_modules, wrap
from curriculum.engine.step import Engine, StepResult


def sgd_step(subject: Engine, windows: list[Any], objective: str, micro: int) -> StepResult:
    """One plain SGD step of rate 0.1."""
    subject.optim = tiny.without_clip()
    trained = [p for p in subject.model.parameters() if p.requires_grad]
    subject.optimizer = torch.optim.SGD(trained, lr=0.1)
    built = objectives.build("p", tiny.phase(objective, len(windows)))
    return subject.step(subject.micro_batches(windows, micro), built, 0.1)


def adamw_step(subject: Engine, number: int) -> StepResult:
    windows = tiny.windows(tiny.examples("causal", seed=number), 3)
    built = objectives.build("p", tiny.phase("causal", len(windows)))
    torch.manual_seed(100 * number + subject.world.rank)  # dropout, as the trainer seeds each step
    return subject.step(subject.micro_batches(windows, 2), built, 1e-2)


def engine(model: schema.Model, ranks: World, weights: Path | None = None, **more: Any) -> Engine:
    settings = replace(tiny.ENGINE, **more)
    return Engine(wrap(build_lm(model, 0, weights), settings, ranks), ranks, settings, tiny.OPTIM)


def full(subject: Engine) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("lm."): p.detach().full_tensor().clone()
        for name, p in subject.model.named_parameters()
    }


def plain(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: t.flatten().tolist() for name, t in tensors.items()}


def exact(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: t.cpu().numpy().tobytes().hex() for name, t in tensors.items()}


def windows_of(objective: str, per_window: int) -> list[Any]:
    if objective == "retrieval":
        return tiny.group_windows(tiny.groups())
    return tiny.windows(tiny.examples(objective), per_window)


def dense(ranks: World, folder: Path) -> Any:
    found = {}
    for tied in (True, False):
        for objective in ("generative", "causal", "retrieval"):
            for per_window, micro in ((1, 1), (3, 2)):
                subject = engine(tiny.model_config(tied), ranks)
                result = sgd_step(subject, windows_of(objective, per_window), objective, micro)
                found[f"{objective}-tied{tied}-pack{per_window}"] = {
                    "loss": result.loss,
                    "norm": result.grad_norm,
                    "weights": plain(full(subject)),
                }
    return found


def experts(ranks: World, folder: Path) -> Any:
    """Sparse models: router losses on at one packing, off at several."""
    found = {}
    for family, model in reference.SPARSE.items():
        for name, objective, router_loss, layouts in reference.EXPERT_CASES:
            for per_window, micro in layouts:
                subject = engine(replace(model, router_loss=router_loss), ranks)
                result = sgd_step(subject, windows_of(objective, per_window), objective, micro)
                found[f"{family}/{name}/pack{per_window}-micro{micro}"] = {
                    "loss": result.loss,
                    "weights": plain(full(subject)),
                }
    return found


def recomputed(ranks: World, folder: Path) -> Any:
    """Weights after two steps with dropout and router losses, by what is recomputed."""
    found = {}
    for which in ("none", "full", "selective"):
        subject = engine(reference.DROPOUT, ranks, activation_checkpointing=which)
        for number in range(2):
            adamw_step(subject, number)
        found[which] = exact(full(subject))
    return found


def compiled(ranks: World, folder: Path) -> Any:
    """Losses and weights of SGD steps over windows of other lengths, compiled and not."""
    found = {}
    for which in (False, True):
        subject = engine(tiny.model_config(True), ranks, compile=which)
        losses = []
        for number in range(3):
            windows = tiny.windows(tiny.examples("causal", seed=number), 3)
            losses.append(sgd_step(subject, windows, "causal", 2).loss)
        found[str(which)] = {"losses": losses, "weights": plain(full(subject))}
    return found


def pretrained(ranks: World, folder: Path) -> Any:
    """A directory's weights in a sharded model: names, values, logits, generation, export."""
    found = {}
    for name, model in reference.PRETRAINED.items():
        subject = engine(model, ranks, folder / name)
        shard = sum(p.to_local().numel() for p in subject.model.parameters())
        evaluator = Evaluator(subject.model, ranks, 40)
        losses = evaluator.losses(tiny.windows(tiny.examples("causal", 5, seed=3), 2))
        generated = evaluator.generate([[5, 6, 7], [8]], 5, {0})
        export(subject.model, reference.Tokenizer(), folder / f"{name}-out{ranks.size}", ranks)
        found[name] = {
            "weights": exact(full(subject)),
            "shard": shard,
            "groups": len(sharded_modules(subject.model)),
            "losses": losses,
            "generated": generated,
        }
    return found


def adapters(ranks: World, folder: Path) -> Any:
    """Training of adapters: what moves, resuming, export; over a directory and from nothing."""
    found: dict[str, Any] = {}
    for name, model in reference.ADAPTED.items():
        weights = folder / name if (folder / name).is_dir() else None
        subject = engine(model, ranks, weights)
        before = full(subject)
        adamw_step(subject, 0)
        saved = folder / f"{name}-checkpoint{ranks.size}"
        checkpoint.save(saved, subject.model, subject.optimizer, {}, ranks)
        adamw_step(subject, 1)
        after = full(subject)
        again = engine(model, ranks, weights)
        checkpoint.load(saved, again.model, again.optimizer)
        adamw_step(again, 1)
        losses = Evaluator(subject.model, ranks, 40).losses(
            tiny.windows(tiny.examples("causal", 5, seed=3), 2)
        )
        out = folder / f"{name}-adapted{ranks.size}"
        export(subject.model, reference.Tokenizer(), out, ranks)
        found[name] = {
            "start": exact({n: t for n, t in before.items() if "lora" in n}),
            "moved": sorted(n for n in before if not torch.equal(before[n], after[n])),
            "kept": sorted(n for n in before if torch.equal(before[n], after[n])),
            "moments": sum(1 for state in subject.optimizer.state.values() if state),
            "resumed": exact(full(again)) == exact(after),
            "losses": losses,
        }
    return found


def checkpoints(ranks: World, folder: Path) -> Any:
    """Checkpoints into models that were built empty, and into a model with adapters."""
    found = {}
    for name in ("tied", "gemma", "sparse"):
        model = reference.PRETRAINED[name]
        subject = engine(model, ranks, folder / name)
        adamw_step(subject, 0)
        saved = folder / f"{name}-saved{ranks.size}"
        checkpoint.save(saved, subject.model, subject.optimizer, {}, ranks)
        windows = tiny.windows(tiny.examples("causal", 5, seed=3), 2)
        losses = Evaluator(subject.model, ranks, 40).losses(windows)
        empty = wrap(build_lm(model, 0, empty=True), tiny.ENGINE, ranks)
        checkpoint.load(saved, empty, None)
        adapted = wrap(build_lm(replace(model, lora=reference.LORA), 0), tiny.ENGINE, ranks)
        checkpoint.load(saved, adapted, None)
        found[name] = {
            "losses": losses,
            "empty": Evaluator(empty, ranks, 40).losses(windows),
            "adapted": Evaluator(adapted, ranks, 40).losses(windows),
        }
    return found


def halved(ranks: World, folder: Path) -> Any:
    """Updates far below what bfloat16 can add to a weight, in bfloat16 compute."""
    subject = engine(tiny.model_config(False), ranks, dtype="bfloat16")
    objective = objectives.build("p", tiny.phase("causal", 3))
    windows = tiny.windows(tiny.examples("causal"), 4)
    before = full(subject)
    for _ in range(40):
        subject.step(subject.micro_batches(windows, 2), objective, 1e-5)
    after = full(subject)
    saved = folder / f"half-saved{ranks.size}"
    checkpoint.save(saved, subject.model, subject.optimizer, {}, ranks)
    stored = FileSystemReader(saved / "state").read_metadata().state_dict_metadata
    other = engine(tiny.model_config(False), ranks, dtype="bfloat16")
    checkpoint.load(saved, other.model, other.optimizer)
    moved = sum(int((after[n] != before[n]).sum()) for n in before)
    halves = {n: t.bfloat16() for n, t in before.items()}
    lost = sum(int((t - 1e-5 == t).sum()) for t in halves.values())
    count = sum(t.numel() for t in before.values())
    return {
        "moved": moved / count,
        "lost_in_bfloat16": lost / count,
        "moments": sorted(
            {str(v.dtype) for state in subject.optimizer.state.values() for v in state.values()}
        ),
        "stored": sorted(
            {str(m.properties.dtype) for m in stored.values() if hasattr(m, "properties")}
        ),
        "loaded_equal": exact(full(other)) == exact(after),
    }


CASES: dict[str, Callable[[World, Path], Any]] = {
    case.__name__: case
    for case in (dense, experts, recomputed, compiled, pretrained, adapters, checkpoints, halved)
}


def main(out: str, folder: str, replicate: str, *names: str) -> None:
    with world(replace(tiny.ENGINE, replicate=int(replicate))) as ranks:
        found = {name: CASES[name](ranks, Path(folder)) for name in names}
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
