"""The engine's step beside a bare PyTorch loop, and what sharding costs on one rank.

    python tests/bench/bench_step.py [--model tiny|smollm2] [--steps 6] [--windows 2]

Three sides take the same steps in turn, in one process, on models of their own with equal weights:
`engine` (`Engine.step`), `bare` (the same FSDP2 model in a plain loop: forward, backward,
`clip_grad_norm_`, fused AdamW) and `plain` (the same loop over the model without FSDP2). Prints
medians, ratios, model FLOP utilisation of the measured float32 matrix-product peak, and where the
engine's time went; JSON on the last line. A step is `--windows` windows of 2,048 tokens.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench_inputs import LR, MODELS, configuration, packed_windows, write_inputs


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=MODELS, default="tiny")
    options.add_argument("--steps", type=int, default=6)
    options.add_argument("--windows", type=int, default=2)
    options.add_argument("--dtype", default="float32")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_inputs(root, MODELS[given.model], given.steps)
        found = run(root, given.steps, given.windows, given.dtype)
    names = ("engine", "bare", "plain")
    print(f"{'side':8} {'s/step':>8} {'tokens/s':>9} {'MFU %':>6}  over bare")
    for name in names:
        row = found[name]
        print(
            f"{name:8} {row['seconds']:8.3f} {row['tokens_per_second']:9,.0f} "
            f"{100 * row['utilisation']:6.1f}  {row['over_bare']:.3f}"
        )
    print("engine's time:", ", ".join(f"{k} {v:.1%}" for k, v in found["parts"].items()))
    print(json.dumps({"model": given.model, "dtype": given.dtype, **found}))


def run(root: Path, steps: int, count: int, dtype: str) -> dict[str, Any]:
    import torch

    from curriculum.engine.distributed import world
    from curriculum.engine.head import token_cross_entropy
    from curriculum.engine.model import TrainModel, build_lm, wrap
    from curriculum.engine.model.isolation import check_isolation
    from curriculum.engine.optim import build_optimizer
    from curriculum.engine.peak import gemm_peak
    from curriculum.engine.step import Engine
    from curriculum.objectives.generative import Generative
    from curriculum.plan.flops import model_size, training_flops

    config = configuration(root, dtype)
    windows = packed_windows(root)
    objective = Generative(config.plan.phases["rag_qa"])
    seconds: dict[str, list[float]] = defaultdict(list)
    parts: dict[str, float] = defaultdict(float)
    flops, tokens, losses, peaks = [], [], defaultdict(list), []
    with world(config.engine) as ranks:

        def bare_step(model: Any, optimizer: Any, batches: Any) -> float:
            model.train()
            total = sum(float(batch.weights.sum()) for batch in batches)
            summed = 0.0
            for batch in batches:
                loss, _ = model(batch, "rows", token_cross_entropy(batch))
                (loss / total).backward()
                summed += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return summed / total

        def sharded() -> TrainModel:
            return wrap(build_lm(config.model, 0, root / "model"), config.engine, ranks)

        def unsharded() -> TrainModel:
            from transformers import AutoModelForCausalLM

            lm = AutoModelForCausalLM.from_pretrained(root / "model", dtype=torch.float32)
            model = TrainModel(lm, config.engine.head_chunk_rows)
            check_isolation(model)
            return model

        engine = Engine(sharded(), ranks, config.engine, config.optim)
        models = {"bare": sharded(), "plain": unsharded()}
        optimizers = {name: build_optimizer(model, config.optim) for name, model in models.items()}
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = LR
        size = model_size(config.model)
        order = ["engine", "bare", "plain"]
        for step in range(steps + 1):
            chosen = [windows[(step * count + i) % len(windows)] for i in range(count)]
            for name in order:
                began = time.perf_counter()
                batches = engine.micro_batches(chosen, 1)
                if name == "engine":
                    result = engine.step(batches, objective, LR)
                    losses[name].append(result.loss)
                else:
                    losses[name].append(bare_step(models[name], optimizers[name], batches))
                if step == 0:
                    continue  # warms up
                seconds[name].append(time.perf_counter() - began)
                if name == "engine":
                    tokens.append(result.forward_tokens)
                    flops.append(
                        training_flops(
                            size, result.forward_tokens, result.trained_tokens,
                            result.example_length,
                        )
                    )  # fmt: skip
                    for part, spent in result.times.items():
                        parts[part] += spent
                else:
                    engine.watch.take()
            peaks.append(gemm_peak(torch.float32, ranks.device))
            order = order[1:] + order[:1]
    for name in ("bare", "plain"):
        worst = max(abs(a - b) for a, b in zip(losses["engine"], losses[name], strict=True))
        assert worst < 1e-3, f"{name} trains something else: losses differ by {worst}"
    peak = max(peaks)
    found: dict[str, Any] = {}
    for name in ("engine", "bare", "plain"):
        median = statistics.median(seconds[name])
        found[name] = {
            "seconds": median,
            "tokens_per_second": statistics.mean(tokens) / median,
            "utilisation": statistics.mean(flops) / median / peak,
            "over_bare": statistics.median(
                a / b for a, b in zip(seconds[name], seconds["bare"], strict=True)
            ),
        }
    whole = sum(seconds["engine"])
    found["parts"] = {**{part: spent / whole for part, spent in parts.items()}}
    found["parts"]["other"] = 1 - sum(found["parts"].values())
    found["gemm_peak_gflops"] = peak / 1e9
    return found


if __name__ == "__main__":
    main()
