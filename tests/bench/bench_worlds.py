"""One process with all threads beside several processes that share them: the same steps.

    python tests/bench/bench_worlds.py [--model tiny|smollm2] [--worlds 1,2] [--steps 4]

Each world is a `torchrun` of its own, in turn, `--rounds` times. A step is 4 windows of 2,048
tokens. Prints tokens a second, peak memory of the largest rank, and the largest difference of
losses to one process; JSON on the last line.
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

from bench_inputs import LR, MODELS, WINDOWS, configuration, packed_windows, write_inputs


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", choices=MODELS, default="tiny")
    options.add_argument("--worlds", default="1,2")
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--dir", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.dir:
        rank(given.dir, given.steps)
        return
    worlds = [int(size) for size in given.worlds.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_inputs(root, MODELS[given.model], given.steps)
        rounds = [
            {size: started(root, size, given.steps) for size in worlds} for _ in range(given.rounds)
        ]
    rows = []
    for size in worlds:
        row: dict[str, Any] = {"world": size}
        for name in ("tokens_per_second", "peak_mib"):
            row[name] = statistics.median(one[size][name] for one in rounds)
        pairs = zip(rounds[0][size]["losses"], rounds[0][worlds[0]]["losses"], strict=True)
        row["loss_difference"] = max(abs(a - b) for a, b in pairs)
        rows.append(row)
    print(f"{'world':>5} {'tokens/s':>9} {'peak MiB':>9}  loss difference to world {worlds[0]}")
    for row in rows:
        world, speed, peak, difference = row.values()
        print(f"{world:5} {speed:9,.0f} {peak:9,.0f}  {difference:.1e}")
    print(json.dumps({"model": given.model, "worlds": rows}))


def started(root: Path, size: int, steps: int) -> dict[str, Any]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    words = [__file__, "--dir", str(root), "--steps", str(steps)]
    done = subprocess.run([sys.executable, *launcher, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"world {size} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rank(root: Path, steps: int) -> None:
    from curriculum.engine.distributed import world
    from curriculum.engine.model import build_lm, wrap
    from curriculum.engine.step import Engine
    from curriculum.objectives.generative import Generative

    config = configuration(root, "float32")
    windows = packed_windows(root)
    with world(config.engine) as ranks:
        lm = build_lm(config.model, 0, root / "model")
        engine = Engine(wrap(lm, config.engine, ranks), ranks, config.engine, config.optim)
        objective = Generative(config.plan.phases["rag_qa"])
        seconds, tokens, losses = [], [], []
        for step in range(steps + 1):
            batch = windows[step * WINDOWS : (step + 1) * WINDOWS]
            began = time.perf_counter()
            result = engine.step(engine.micro_batches(batch, 1), objective, LR)
            seconds.append(time.perf_counter() - began)
            tokens.append(result.forward_tokens)
            losses.append(result.loss)
        peaks = ranks.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        if ranks.is_main:
            speed = statistics.mean(tokens[1:]) / statistics.median(seconds[1:])
            print(
                json.dumps({"tokens_per_second": speed, "peak_mib": max(peaks), "losses": losses})
            )


if __name__ == "__main__":
    main()
