"""What each gloo process runs of retrieval, of gathering, and of the options of token losses."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch
from retrieval_reference import VARIANTS, made

from curriculum import config as schema
from curriculum import objectives
from curriculum.engine.distributed import World, world
from curriculum.engine.head import Embed
from curriculum.engine.model import build_lm, wrap
from curriculum.engine.step import Engine

TOKEN_LOSSES = {"smoothing": schema.Loss(label_smoothing=0.2), "z": schema.Loss(z_loss=0.03)}


def engine(ranks: World, model: schema.Model) -> Engine:
    wrapped = wrap(build_lm(model, 0), tiny.ENGINE, ranks)
    subject = Engine(wrapped, ranks, tiny.ENGINE, tiny.without_clip())
    subject.optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    return subject


def one_step(
    ranks: World, phase: schema.Phase, windows: list[Any], micro: int, model: schema.Model
) -> Any:
    subject = engine(ranks, model)
    batches = subject.micro_batches(windows, micro)
    result = subject.step(batches, objectives.build("p", phase), 0.1)
    weights = {
        name.removeprefix("lm."): p.detach().full_tensor().flatten().tolist()
        for name, p in subject.model.named_parameters()
    }
    return {"loss": result.loss, "norm": result.grad_norm, "weights": weights}


def retrieval_steps(ranks: World) -> Any:
    """Six groups, and one: with two ranks, one of them then has nothing."""
    found = {}
    for name, options in VARIANTS.items():
        for count in (6, 1):
            windows = tiny.group_windows(made(count))
            phase = tiny.phase("retrieval", 6)
            assert phase.retrieval is not None
            phase = replace(phase, retrieval=replace(phase.retrieval, **options))
            for micro in (1, 4, 99):
                key = f"{name}-groups{count}-micro{micro}"
                model = tiny.model_config(count == 6)
                found[key] = one_step(ranks, phase, windows, micro, model)
    return found


def token_steps(ranks: World) -> Any:
    found = {}
    for name, loss in TOKEN_LOSSES.items():
        windows = tiny.windows(tiny.examples("generative"), 2)
        phase = replace(tiny.phase("generative", 6), loss=loss)
        for micro in (1, 4):
            model = tiny.model_config(True)
            found[f"{name}-micro{micro}"] = one_step(ranks, phase, windows, micro, model)
    return found


def gathering(ranks: World) -> Any:
    """Rows of unequal numbers, none on the last rank, with bit patterns that sums would lose."""
    count = 0 if ranks.rank == ranks.size - 1 else 3 + ranks.rank
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-42, 1.0 + 2**-23, -1.0])
    mine = {
        "float": odd.repeat(count, 1) * (ranks.rank + 1),
        "int": torch.arange(count) + (1 << 60) + ranks.rank,
        "empty": torch.zeros(0, 4),
    }
    found: dict[str, Any] = {"ranks": ranks.size}
    for name, rows in mine.items():
        got = ranks.gather_rows(rows)
        sent = ranks.gather(rows)
        found[name] = {
            "shapes": [list(share.shape) for share in got],
            "equal": all(_bits(a) == _bits(b) for a, b in zip(got, sent, strict=True)),
        }
    return found


def _bits(tensor: Any) -> bytes:
    return str((tensor.dtype, tuple(tensor.shape))).encode() + tensor.contiguous().numpy().tobytes()


def dropout_twice(ranks: World) -> Any:
    """Embeddings of the pass that is cached, of the pass that is trained, and of one more."""
    subject = engine(ranks, tiny.model_config(True, attention_dropout=0.3))
    batches = subject.micro_batches(tiny.group_windows(tiny.groups()), 2)
    subject.model.train()
    torch.manual_seed(ranks.rank)
    step = subject._encode(batches, Embed())

    def again() -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def keep(embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(embeddings.detach())
            return embeddings.sum(), embeddings.new_zeros(())

        for batch in batches:
            subject.model(batch, Embed(), keep)
        return torch.cat([s for s, batch in zip(seen, batches, strict=True) if batch.groups])

    trained, third = again(), again()
    cached = step.embeddings[step.offset : step.offset + len(trained)]
    return ranks.gather([torch.equal(cached, trained), torch.equal(cached, third)])


def main(out: str, replicate: str) -> None:
    with world(replace(tiny.ENGINE, replicate=int(replicate))) as ranks:
        found = {
            "retrieval": retrieval_steps(ranks),
            "tokens": token_steps(ranks),
            "gathering": gathering(ranks),
            "dropout": dropout_twice(ranks),
        }
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
