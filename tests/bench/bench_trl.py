"""Training steps: this engine beside TRL's `SFTTrainer`, on the same weights and examples.

    python tests/bench/bench_trl.py [--model tiny|smollm2] [--steps 4] [--rounds 3] [--sides ...]

Needs `pip install trl datasets`. Sides run one after the other, `rounds` times, each in a process
of its own with the same threads: `ours` and `trl` (packing, no gradient checkpointing) in float32
and bfloat16, and `trl-defaults` (as `SFTConfig()` has it). A step is `--windows` (4) windows of
2,048 tokens, of which 15% are trained; AdamW. Prints a table with medians and ratios, and JSON on
the last line.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_inputs import (
    LR,
    MODELS,
    SEQ_LEN,
    TRAINED,
    WINDOWS,
    completion_mask,
    configuration,
    packed_windows,
    threads,
    write_inputs,
)

SIDES = ("ours-fp32", "ours-bf16", "trl-fp32", "trl-bf16", "trl-defaults")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=MODELS, default="tiny")
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--windows", type=int, default=WINDOWS)
    options.add_argument("--sides", default=",".join(SIDES))
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options.add_argument("--dir", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side:
        run = ours if given.side.startswith("ours") else trl
        print(json.dumps(run(given.dir, given.side, given.steps, given.windows)))
        return
    sides = given.sides.split(",")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_inputs(root, MODELS[given.model], given.steps)
        rounds = [
            {side: measured(side, root, given.steps, given.windows) for side in sides}
            for _ in range(given.rounds)
        ]
    report(given.model, sides, rounds)


def report(model: str, sides: list[str], rounds: list[dict[str, dict[str, float]]]) -> None:
    def median(side: str, name: str) -> float:
        return statistics.median(one[side][name] for one in rounds)

    base = "ours-fp32" if "ours-fp32" in sides else sides[0]
    rows = [
        {
            "side": side,
            "tokens_per_second": round(median(side, "tokens_per_second"), 1),
            "trained_tokens_per_second": round(median(side, "trained_tokens_per_second"), 1),
            "peak_mib": round(median(side, "peak_mib"), 1),
            "first_loss": rounds[0][side]["first_loss"],
            f"{base}_is_faster_by": round(
                statistics.median(
                    one[base]["tokens_per_second"] / one[side]["tokens_per_second"]
                    for one in rounds
                ),
                2,
            ),
        }
        for side in sides
    ]
    print(f"{'side':14} {'tokens/s':>9} {'trained/s':>10} {'peak MiB':>9} {'loss':>8}  {base} /")
    for row in rows:
        side, speed, trained, peak, loss, ratio = row.values()
        print(f"{side:14} {speed:9,.0f} {trained:10,.0f} {peak:9,.0f} {loss:8.4f}  {ratio:.2f}")
    print(json.dumps({"model": model, "sides": rows}))


def measured(side: str, root: Path, steps: int, windows: int) -> dict[str, float]:
    words = ["--side", side, "--dir", root, "--steps", steps, "--windows", windows]
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def figures(seconds: list[float], tokens: float, trained: float, loss: float) -> dict[str, float]:
    """`tokens` and `trained` are those of a step; the first step warms up."""
    step = statistics.median(seconds[1:])
    return {
        "tokens_per_second": tokens / step,
        "trained_tokens_per_second": trained / step,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "first_loss": round(loss, 4),
    }


def ours(root: Path, side: str, steps: int, count: int) -> dict[str, float]:
    from curriculum.engine.distributed import world
    from curriculum.engine.model import build_lm, wrap
    from curriculum.engine.step import Engine
    from curriculum.objectives.generative import Generative

    config = configuration(root, "bfloat16" if side.endswith("bf16") else "float32")
    windows = packed_windows(root)
    with world(config.engine) as ranks:
        lm = build_lm(config.model, 0, root / "model")
        engine = Engine(wrap(lm, config.engine, ranks), ranks, config.engine, config.optim)
        objective = Generative(config.plan.phases["rag_qa"])
        seconds, results = [], []
        for step in range(steps + 1):
            batch = windows[step * count : (step + 1) * count]
            began = time.perf_counter()
            results.append(engine.step(engine.micro_batches(batch, 1), objective, LR))
            seconds.append(time.perf_counter() - began)
    later = results[1:]
    tokens = statistics.mean(result.forward_tokens for result in later)
    trained = statistics.mean(result.trained_tokens for result in later)
    return figures(seconds, tokens, trained, results[0].loss)


def trl(root: Path, side: str, steps: int, count: int) -> dict[str, float]:
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(threads())
    examples = json.loads((root / "examples.json").read_text())
    rows = {"input_ids": examples, "completion_mask": [completion_mask(len(e)) for e in examples]}
    backend = Tokenizer(models.WordLevel({"<eos>": 0, "<pad>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    common: dict[str, Any] = {
        "output_dir": str(root / "out"),
        "max_steps": steps + 1,
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "use_cpu": True,
        "max_length": SEQ_LEN,
        "disable_tqdm": True,
    }
    best = {
        "packing": True,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": count,
        "bf16": side.endswith("bf16"),
        "max_grad_norm": 1.0,
    }
    settings = SFTConfig(**common, **({} if side == "trl-defaults" else best))
    seconds: list[float] = []
    began = time.perf_counter()

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal began
            began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - began)

    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(root / "model", dtype=torch.float32),
        args=settings,
        train_dataset=Dataset.from_dict(rows),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    rows_a_step = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
    tokens = sum(map(len, examples)) / len(trainer.train_dataset) * rows_a_step
    trainer.train()
    loss = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    return figures(seconds, tokens, tokens * TRAINED, float(loss))


if __name__ == "__main__":
    main()
