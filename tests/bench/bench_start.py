"""From a command to its first step, and from one phase to the next.

    python tests/bench/bench_start.py [--rounds 3] [KEY=VALUE ...]

Runs `curriculum run +plan=corrective profile=tiny` once, so that data and base are prepared, then
`--rounds` times afresh in empty run directories and watches the lines of `metrics.jsonl` arrive. A
phase switch is the time between the last step of a phase and the first step of the next one, less
what that step itself took: it holds the checkpoint, the store, and opening the next data. Prints
medians and the imports that take longest; JSON on the last line.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

IMPORTS = ("torch", "transformers", "mlflow", "pyarrow", "hydra", "pydantic", "numpy")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    given, overrides = options.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        overrides = ["+plan=corrective", "profile=tiny", *overrides]
        watched(overrides)
        rounds = []
        for _ in range(given.rounds):
            shutil.rmtree("runs/corrective")
            forget_all_but_the_base()
            rounds.append(watched(overrides))
    first = [one["first_step"] for one in rounds]
    switches = [switch for one in rounds for switch in one["switches"]]
    found: dict[str, Any] = {
        "command_to_first_step": statistics.median(first),
        "phase_switch_median": statistics.median(switches),
        "phase_switch_longest": max(switches),
        "imports": imports(),
    }
    print(f"command to first step  {found['command_to_first_step']:.2f} s")
    print(
        f"phase switch           {found['phase_switch_median']:.3f} s "
        f"(longest of {len(switches)}: {found['phase_switch_longest']:.3f} s)"
    )
    print("imports:", ", ".join(f"{k} {v:.2f} s" for k, v in found["imports"].items()))
    print(json.dumps(found))


def forget_all_but_the_base() -> None:
    for stored in Path(".curriculum/store").iterdir():
        meta = stored / "meta.json"
        if meta.is_file() and not json.loads(meta.read_text())["phase"].startswith("base_"):
            shutil.rmtree(stored)


def watched(overrides: list[str]) -> dict[str, Any]:
    """Seconds to the first step of the plan, and of each switch between two of its phases."""
    metrics = Path("runs/corrective/tiny/metrics.jsonl")
    command = [sys.executable, "-m", "curriculum", "run", *overrides]
    with open("messages.txt", "wb") as messages:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages)
    arrived: list[float] = []
    while process.poll() is None:
        time.sleep(0.002)
        if metrics.is_file():
            count = metrics.read_bytes().count(b"\n")
            now = time.perf_counter() - began
            arrived += [now] * (count - len(arrived))
    if process.returncode:
        raise SystemExit(Path("messages.txt").read_text()[-3000:])
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    switches = [
        arrived[i] - arrived[i - 1] - row["seconds"]
        for i, row in enumerate(rows)
        if i and row["phase"] != rows[i - 1]["phase"]
    ]
    return {"first_step": arrived[0], "switches": switches}


def imports() -> dict[str, float]:
    """Seconds that each of the largest packages takes to import, alone in a process."""
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    found = {}
    for package in IMPORTS:
        command = [sys.executable, "-c", code.format(package)]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
        found[package] = float(done.stdout.split()[-1])
    return found


if __name__ == "__main__":
    main()
