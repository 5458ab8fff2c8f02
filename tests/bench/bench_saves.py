"""What saving costs: how long training stands still, how much slower it goes meanwhile, and how
long it takes from the command to the first step of a resumed run.

    python tests/bench/bench_saves.py [--layers 12] [--saves 4] [--tokens 96] [--dir DIR] [--json]
    torchrun --standalone --nproc-per-node 2 tests/bench/bench_saves.py --no-resume

A model of about 100M parameters trains on random tokens; a save begins every few steps. What a run
that saves every ten minutes loses is worked out from the cost of one save, not measured over
hours: (standing still + what the steps beside it took longer) / 600 s. `--dir` says which disk.
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from curriculum import config as schema
from curriculum import objectives, store
from curriculum.data.windows import Window
from curriculum.engine.distributed import World, world
from curriculum.engine.model import build_lm, wrap
from curriculum.engine.saves import Saves
from curriculum.engine.step import Engine
from curriculum.terminal import grid, size_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "dist"))

EVERY_SECONDS = 600.0
TARGETS = {"blocked_s_per_gb": 0.5, "overhead": 0.02}
SHAPE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "intermediate_size": 2048,
    "vocab_size": 20480,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
OPTIM = schema.Optim(
    name="adamw", lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, max_grad_norm=1.0
)
ENGINE = schema.Engine(
    dtype="float32",
    threads=None,
    micro_batch_tokens=4096,
    head_chunk_rows=512,
    replicate=1,
    max_nonfinite_steps=5,
    timeout_seconds=600,
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--saves", type=int, default=4)
    options.add_argument("--tokens", type=int, default=96, help="of a step")
    options.add_argument("--dir", type=Path, default=None)
    options.add_argument("--json", action="store_true")
    options.add_argument("--no-resume", action="store_true")
    given = options.parse_args()
    shape = {**SHAPE, "num_hidden_layers": given.layers}
    with world(ENGINE) as ranks:
        directory = Path(ranks.from_main(lambda: tempfile.mkdtemp(dir=given.dir)))
        try:
            found = measure(ranks, directory, shape, given.saves, given.tokens)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    if ranks.is_main and not given.no_resume:
        with tempfile.TemporaryDirectory(dir=given.dir) as directory:
            found |= resumed(Path(directory), shape)
    if ranks.is_main:
        print(json.dumps(found, indent=1) if given.json else table(found))


def measure(
    ranks: World, directory: Path, shape: dict[str, Any], saves: int, tokens: int
) -> dict[str, Any]:
    """One save after another, each beside as many steps as it takes."""
    lm = build_lm(_model(shape), 0)
    parameters = sum(parameter.numel() for parameter in lm.parameters())
    engine = Engine(wrap(lm, ENGINE, ranks), ranks, ENGINE, OPTIM)
    objective = objectives.build("p", _phase(ranks.size))
    rng = np.random.default_rng(0)

    def step() -> float:
        began = time.perf_counter()
        windows = [_window(rng, tokens, shape["vocab_size"]) for _ in range(ranks.size)]
        engine.step(engine.micro_batches(windows, 1), objective, 1e-4)
        return time.perf_counter() - began

    writer = Saves(directory, ranks, schema.Checkpoint(every_steps=None, keep_last=2))
    writer.reserve(engine.model, engine.optimizer)
    step()
    alone = [step() for _ in range(6)]
    blocked, slower, written, beside_all = [], [], [], []
    for number in range(1, saves + 1):
        began = time.perf_counter()
        writer.start(number, engine.model, engine.optimizer, {})
        blocked.append(time.perf_counter() - began)
        beside: list[float] = []
        while not ranks.from_main(writer.idle):
            beside.append(step())
        written.append(time.perf_counter() - began)
        writer.wait()
        beside_all += beside
        slower.append(sum(beside) - statistics.median(alone) * len(beside))
        alone += [step() for _ in range(2)]
    writer.close()
    ranks.barrier()
    newest = store.step_directories(directory)[-1]
    size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    ranks.barrier()
    usual = statistics.median(alone)
    cost = statistics.mean(blocked[1:]) + statistics.mean(slower[1:])
    return {
        "ranks": ranks.size,
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        "state_bytes": size,
        "step_seconds": round(usual, 3),
        "blocked_seconds": [round(value, 3) for value in blocked],
        "blocked_s_per_gb_first": round(blocked[0] / size * 1e9, 3),
        "blocked_s_per_gb": round(statistics.mean(blocked[1:]) / size * 1e9, 3),
        "written_after_seconds": [round(value, 2) for value in written],
        "step_seconds_beside": round(statistics.median(beside_all), 3) if beside_all else None,
        "steps_longer_by_seconds": [round(value, 2) for value in slower],
        "overhead_every_ten_minutes": round(cost / EVERY_SECONDS, 5),
    }


def resumed(root: Path, shape: dict[str, Any]) -> dict[str, Any]:
    """Seconds from a command to its first new row, of a run that was stopped after two steps."""
    from plan_runs import arguments, lay_out

    lay_out(root)
    model = [f"model.config.{key}={value}" for key, value in shape.items()]
    words = ["run", "--config-dir", str(root), *arguments(root, "run", *model)]
    command = [sys.executable, "-m", "curriculum", *words]
    log = root / "run" / "metrics.jsonl"
    seconds: list[float] = []
    for target in (2, None, None, None):
        rows = _rows(log)
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while _rows(log) < (target or rows + 1):
            if process.poll() is not None:
                raise SystemExit(f"the run ended with {process.returncode}")
            time.sleep(0.02)
        seconds.append(time.perf_counter() - began)
        process.send_signal(signal.SIGTERM)
        process.wait()
    return {"command_to_first_resumed_step_seconds": [round(value, 2) for value in seconds[1:]]}


def _rows(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def table(found: dict[str, Any]) -> str:
    size = found["state_bytes"] / 1e9
    first, *later = found["blocked_seconds"]
    rows = [
        ("parameters", f"{found['parameters']:,}", ""),
        ("state on disk", size_text(found["state_bytes"]), ""),
        ("training stands still, first save", f"{first:.2f} s", f"{first / size:.2f} s/GB"),
        (
            "training stands still, later saves",
            f"{statistics.mean(later):.2f} s",
            f"{found['blocked_s_per_gb']:.2f} s/GB (target {TARGETS['blocked_s_per_gb']})",
        ),
        ("written after", f"{statistics.mean(found['written_after_seconds']):.1f} s", ""),
        ("a step alone", f"{found['step_seconds']:.2f} s", ""),
        ("a step beside a save", f"{found['step_seconds_beside'] or 0:.2f} s", ""),
        (
            "overhead if saved every ten minutes",
            f"{100 * found['overhead_every_ten_minutes']:.2f} %",
            f"worked out (target {100 * TARGETS['overhead']:.0f} %)",
        ),
    ]
    if "command_to_first_resumed_step_seconds" in found:
        seconds = found["command_to_first_resumed_step_seconds"]
        rows.append(("command to first resumed step", f"{statistics.median(seconds):.1f} s", ""))
    head = f"{found['ranks']} rank(s), {found['threads']} thread(s) each"
    return f"{head}\n\n{grid(['what', 'figure', 'of the whole'], rows, None)}"


def _window(rng: np.random.Generator, tokens: int, vocabulary: int) -> Window:
    return Window(
        input_ids=rng.integers(0, vocabulary, tokens).astype(np.int32),
        seq_lens=np.array([tokens], np.int32),
        loss_weights=np.array([1.0] * (tokens - 1) + [0.0], np.float32),
        document_ids=np.zeros(0, np.int64),
        record_ids=np.zeros(1, np.int64),
    )


def _model(shape: dict[str, Any]) -> schema.Model:
    return schema.Model(
        name="bench",
        path=None,
        config={"model_type": "qwen3", **shape},
        tokenizer=None,
        chat_template=None,
        parameters=None,
    )


def _phase(windows: int) -> schema.Phase:
    return schema.Phase(
        objective="causal",
        task="text",
        role="foundation",
        batch_size=windows,
        seq_len=1024,
        data=schema.PhaseData(sources=["none"]),
    )


if __name__ == "__main__":
    main()
