"""From a command to its first step, and from one phase to the next.

    python tests/bench/bench_start.py [--rounds 3] [KEY=VALUE ...]

Runs `curriculum run +plan=corrective profile=tiny` once, so that data and base are prepared, then
`--rounds` times afresh in empty run directories, in turn with the probes of the base at the start
and without. Prints when each part of a start had ended: the parts follow one another, and the last
one ends when the first row of `metrics.jsonl` is written. A phase switch is the time between the
last step of a phase and the first step of the next one, less what that step itself took: it holds
the checkpoint, the store, and opening the next data. Prints medians, and how much of the imports
belongs to which package; JSON on the last line.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MARKS, IMPORTS = Path("marks.json"), 12
PARTS = {
    "composed": "interpreter, Hydra, the composed plan",
    "checked": "checks: data, audit, keys, of the plan and its base",
    "imported": "imports: torch, transformers, the engine",
    "model": "process group, model, weights",
    "opened": "held-out data opened",
    "probed": "probes at the start",
    "stepped": "first step",
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    given, overrides = options.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        overrides = ["+plan=corrective", "profile=tiny", *overrides]
        watched(overrides)
        rounds: dict[str, list[dict[str, Any]]] = {"probed": [], "unprobed": []}
        for _ in range(given.rounds):
            for kind, more in (("probed", []), ("unprobed", ["probes.at_start=false"])):
                start_anew()
                rounds[kind].append(watched([*overrides, *more]))
        start_anew()
        packages = imports_by_package(overrides)
    switches = [switch for kind in rounds.values() for one in kind for switch in one["switches"]]
    found: dict[str, Any] = {
        "command_to_first_step": middle(rounds["probed"], "first_step"),
        "command_to_first_step_without_probes": middle(rounds["unprobed"], "first_step"),
        "parts": {part: middle(rounds["probed"], part) for part in PARTS},
        "phase_switch_median": statistics.median(switches),
        "phase_switch_longest": max(switches),
        "imports": packages,
    }
    print(
        f"command to first step  {found['command_to_first_step']:.2f} s; without probes at the "
        f"start {found['command_to_first_step_without_probes']:.2f} s"
    )
    for part, seconds in found["parts"].items():
        print(f"  {seconds:6.2f} s  {PARTS[part]}")
    print(
        f"phase switch           {found['phase_switch_median']:.3f} s "
        f"(longest of {len(switches)}: {found['phase_switch_longest']:.3f} s)"
    )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in packages.items())
    print(f"all imports before the first step, by package: {shares}")
    print(json.dumps(found))


def middle(rounds: list[dict[str, Any]], key: str) -> float:
    return statistics.median(one[key] for one in rounds)


def start_anew() -> None:
    """Forget all but prepared data and the base."""
    shutil.rmtree("runs/corrective")
    for stored in Path(".curriculum/store").iterdir():
        meta = stored / "meta.json"
        if meta.is_file() and not json.loads(meta.read_text())["phase"].startswith("base_"):
            shutil.rmtree(stored)


def watched(overrides: list[str]) -> dict[str, Any]:
    """Seconds to the first step of the plan, of each part before it, and of each switch between two
    of its phases."""
    metrics = Path("runs/corrective/tiny/metrics.jsonl")
    MARKS.unlink(missing_ok=True)
    with open("messages.txt", "wb") as messages:
        began = time.monotonic()
        process = subprocess.Popen(marked_command(overrides), stdout=messages, stderr=messages)
    arrived: list[float] = []
    while process.poll() is None:
        time.sleep(0.002)
        if metrics.is_file():
            count = metrics.read_bytes().count(b"\n")
            now = time.monotonic() - began
            arrived += [now] * (count - len(arrived))
    if process.returncode:
        raise SystemExit(Path("messages.txt").read_text()[-3000:])
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    switches = [
        arrived[i] - arrived[i - 1] - row["seconds"]
        for i, row in enumerate(rows)
        if i and row["phase"] != rows[i - 1]["phase"]
    ]
    parts, before = {}, began
    for part, at in json.loads(MARKS.read_text()).items():
        parts[part], before = at - before, at
    return {"first_step": arrived[0], "switches": switches, **parts}


def imports_by_package(overrides: list[str]) -> dict[str, float]:
    """Shares of the time that all imports take before the first step, largest first."""
    command = [sys.executable, "-X", "importtime", *marked_command(overrides)[1:], "--only-start"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds: dict[str, float] = defaultdict(float)
    for own, module in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", done.stderr, re.M):
        name = module.partition(".")[0]
        seconds["(Python)" if name in sys.stdlib_module_names else name] += int(own)
    largest = sorted(seconds, key=lambda name: -seconds[name])[:IMPORTS]
    return {name: seconds[name] / sum(seconds.values()) for name in largest}


def marked_command(overrides: list[str]) -> list[str]:
    return [sys.executable, __file__, "--marked", "run", *overrides]


def marked(arguments: list[str]) -> int:
    """`curriculum ARGUMENTS` in this process, noting when each part of its start has ended."""
    from curriculum import cli, runner

    only_start = "--only-start" in arguments
    marks: dict[str, float] = {}

    def mark(part: str) -> None:
        marks.setdefault(part, time.monotonic())

    def after(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            mark(part)
            return result

        return call

    def begin(*given: Any) -> int:
        mark("composed")
        return run(*given)

    @contextmanager
    def importing() -> Iterator[None]:
        with imports():
            yield
        mark("imported")
        from curriculum.tracking.journal import Journal
        from curriculum.training import run as training
        from curriculum.training.evaluations import Evaluations

        training.open_engine = after("model", training.open_engine)
        Evaluations.build = after("opened", Evaluations.build)
        training.PlanRun._open = after("probed", training.PlanRun._open)
        step = Journal.step

        def stepped(*given: Any) -> None:
            step(*given)
            mark("stepped")
            if not MARKS.is_file():
                MARKS.write_text(json.dumps(marks))
                if only_start:
                    os._exit(0)

        Journal.step = stepped

    run, imports = runner.run, runner._never_collected
    runner.run, runner._never_collected = begin, importing
    runner._checked = after("checked", runner._checked)
    return cli.main([argument for argument in arguments if argument != "--only-start"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--marked"]:
        sys.path.insert(0, os.getcwd())
        sys.exit(marked(sys.argv[2:]))
    main()
