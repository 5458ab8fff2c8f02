"""The chunked loss head beside full logits: memory and time, by vocabulary and rows.

    python tests/bench/bench_head.py [--rows 2048] [--hidden 576] [--vocabularies 32768,151936]

Each side computes the loss and the gradients of hidden states and head weight, in a process of its
own, sides in turn, `--rounds` times. `full`: `F.cross_entropy` of all logits; `chunked`: this
package's head. Memory is what the process holds at most beyond inputs and the gradients summed so
far; the head weight's new gradient, `vocabulary x hidden`, is part of it on both sides. Prints a
table with medians, and JSON on the last line.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

from bench_inputs import threads

SIDES = ("chunked", "full")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=2048)
    options.add_argument("--hidden", type=int, default=576)
    options.add_argument("--vocabularies", default="32768,151936")
    options.add_argument("--chunk", type=int, default=512)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options.add_argument("--vocabulary", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.side:
        print(json.dumps(measure(given)))
        return
    found = []
    print(f"{'vocabulary':>10} {'rows':>6} {'side':8} {'ms':>8} {'MiB':>8}")
    for vocabulary in map(int, given.vocabularies.split(",")):
        rounds = [
            {side: child(given, side, vocabulary) for side in SIDES} for _ in range(given.rounds)
        ]
        row = {"vocabulary": vocabulary, "rows": given.rows, "hidden": given.hidden}
        for side in SIDES:
            row[side] = {
                name: statistics.median(one[side][name] for one in rounds)
                for name in ("milliseconds", "mib")
            }
            print(
                f"{vocabulary:10,} {given.rows:6,} {side:8} "
                f"{row[side]['milliseconds']:8,.0f} {row[side]['mib']:8,.0f}"
            )
        assert len({one[side]["loss"] for one in rounds for side in SIDES}) == 1, "losses differ"
        found.append(row)
    print(json.dumps({"heads": found}))


def child(given: argparse.Namespace, side: str, vocabulary: int) -> dict[str, float]:
    words = ["--side", side, "--vocabulary", vocabulary, "--rows", given.rows]
    words += ["--hidden", given.hidden, "--chunk", given.chunk]
    command = [sys.executable, __file__, *map(str, words)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(given: argparse.Namespace) -> dict[str, float]:
    import torch
    import torch.nn.functional as F

    from curriculum.engine.head import Rows, Transform

    torch.set_num_threads(threads())
    torch.manual_seed(0)
    hidden = torch.randn(given.rows, given.hidden, requires_grad=True)
    weight = (0.02 * torch.randn(given.vocabulary, given.hidden)).requires_grad_()
    labels = torch.randint(given.vocabulary, (given.rows,))
    ones = torch.ones(given.rows)

    def loss() -> torch.Tensor:
        if given.side == "full":
            return F.cross_entropy(hidden @ weight.T, labels, reduction="sum")
        return Rows(hidden, weight, None, Transform(), given.chunk).cross_entropy(labels, ones)

    hidden.grad, weight.grad = torch.zeros_like(hidden), torch.zeros_like(weight)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        value = loss()
        value.backward()
        seconds.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "milliseconds": 1e3 * statistics.median(seconds[1:]),
        "mib": (after - before) / 1024,
        "loss": round(float(value) / given.rows, 3),
    }


if __name__ == "__main__":
    main()
