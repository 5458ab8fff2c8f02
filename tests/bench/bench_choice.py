"""The head of choices beside logits of the whole vocabulary: memory and time of the same loss.

    python tests/bench/bench_choice.py [--tokens 2048] [--rows 64] [--choices 4] [--rounds 3]
        [--hidden 1024] [--vocabulary 151936] [--dtype float32] [--device cpu|cuda]

One micro-batch of `tokens` hidden states, of which `rows` predict an answer among `choices` tokens;
forward, cross entropy to a target distribution, and backward into hidden states and head:

    choices      logits of the candidates, by the engine
    marked-rows  logits of the whole vocabulary at the marked positions
    all-rows     logits of the whole vocabulary at every position, as `model(...).logits` are

Sides take turns, `rounds` times, after a first pass each in which memory is measured; times and
their ratios to `choices` are medians over rounds, ratios taken within a round. Memory is what is
allocated beyond the inputs at its peak, from the allocator's own events. Every way ends with the
gradients of head and hidden states, which belong to training and not to logits: `head MiB` is the
peak less these two, `with gradients` the peak itself. Losses must agree to 1e-5. Prints a table
and, on the last line, JSON.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from curriculum.engine.choices import Choices
from curriculum.engine.head import Transform, choice_logits
from curriculum.losses import cross_entropy

MIB = 1 << 20
CHUNK_ROWS = 512  # engine.head_chunk_rows as it ships


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("tokens", 2048), ("rows", 64), ("choices", 4), ("rounds", 3), ("hidden", 1024),
        ("vocabulary", 151_936),
    ):  # fmt: skip
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options.add_argument("--device", default="cpu")
    given = options.parse_args()
    dtype, device = getattr(torch, given.dtype), torch.device(given.device)
    hidden, weight, choices = inputs(given, dtype, device)
    sides = {name: pass_of(side, hidden, weight, choices) for name, side in SIDES}
    found = {name: memory(once, hidden, weight) for name, once in sides.items()}
    for _ in range(given.rounds):
        for name, once in sides.items():
            found[name].seconds.append(timed(once, hidden))
    report(given, sum(t.numel() * t.element_size() for t in (weight, hidden)), found)


def inputs(
    given: argparse.Namespace, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, Choices]:
    torch.manual_seed(0)
    hidden = torch.randn(given.tokens, given.hidden, dtype=dtype, device=device)
    weight = torch.randn(given.vocabulary, given.hidden, dtype=dtype, device=device)
    weight /= given.hidden**0.5
    ids = torch.stack([torch.randperm(1000)[: given.choices] for _ in range(given.rows)])
    targets = torch.rand(given.rows, given.choices)
    choices = Choices(
        positions=torch.randperm(given.tokens)[: given.rows].sort().values.to(device),
        ids=ids.to(device),
        counts=torch.full((given.rows,), given.choices, device=device),
        target_probs=(targets / targets.sum(1, keepdim=True)).to(device),
        weights=torch.ones(given.rows, device=device),
        mix_weights=torch.zeros(given.rows, 0, device=device),
        mix_components=[],
        trained=given.rows,
    )
    return hidden.requires_grad_(), weight.requires_grad_(), choices


def loss_of(logits: torch.Tensor, choices: Choices) -> torch.Tensor:
    loss, weight = cross_entropy(
        choice_logits=logits,
        choice_counts=choices.counts,
        target_probs=choices.target_probs,
        weights=choices.weights,
        mix_weights=choices.mix_weights,
        mix_components=choices.mix_components,
    )
    return loss / weight


def ours(hidden: torch.Tensor, weight: torch.Tensor, choices: Choices) -> torch.Tensor:
    rows = hidden.index_select(0, choices.positions)
    return loss_of(choice_logits(rows, weight, None, choices, Transform(), CHUNK_ROWS), choices)


def marked_rows(hidden: torch.Tensor, weight: torch.Tensor, choices: Choices) -> torch.Tensor:
    logits = F.linear(hidden.index_select(0, choices.positions), weight)
    return loss_of(logits.gather(1, choices.ids).float(), choices)


def all_rows(hidden: torch.Tensor, weight: torch.Tensor, choices: Choices) -> torch.Tensor:
    logits = F.linear(hidden, weight).index_select(0, choices.positions)
    return loss_of(logits.gather(1, choices.ids).float(), choices)


Side = Callable[[torch.Tensor, torch.Tensor, Choices], torch.Tensor]
SIDES: tuple[tuple[str, Side], ...] = (
    ("choices", ours),
    ("marked-rows", marked_rows),
    ("all-rows", all_rows),
)


@dataclass
class Measured:
    """Of one side: its loss, bytes at the peak, and the seconds of each round."""

    loss: float
    peak: int
    seconds: list[float] = field(default_factory=list)


def pass_of(
    side: Side, hidden: torch.Tensor, weight: torch.Tensor, choices: Choices
) -> Callable[[], float]:
    """Forward and backward; the loss."""

    def once() -> float:
        hidden.grad = weight.grad = None
        loss = side(hidden, weight, choices)
        loss.backward()
        return loss.item()

    return once


def memory(once: Callable[[], float], hidden: torch.Tensor, weight: torch.Tensor) -> Measured:
    hidden.grad = weight.grad = None  # or their end would count as the head's
    losses: list[float] = []
    most = peak(lambda: losses.append(once()), hidden)
    return Measured(losses[0], most)


def timed(once: Callable[[], float], hidden: torch.Tensor) -> float:
    began = time.perf_counter()
    once()  # ends with a read of the loss
    if hidden.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak(once: Callable[[], object], hidden: torch.Tensor) -> int:
    """Bytes that are allocated at once beyond what was there before, at most."""
    if hidden.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        once()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    moves = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, size in moves:
        now += size
        most = max(most, now)
    return most


def report(given: argparse.Namespace, gradients: int, found: dict[str, Measured]) -> None:
    """`gradients`: bytes of those of head and hidden states."""
    ours = found["choices"]
    rows = [
        {
            "side": name,
            "head_mib": (one.peak - gradients) / MIB,
            "with_gradients_mib": one.peak / MIB,
            "milliseconds": statistics.median(one.seconds) * 1000,
            "loss": one.loss,
            "head_memory_ratio": (one.peak - gradients) / (ours.peak - gradients),
            "peak_ratio": one.peak / ours.peak,
            "time_ratio": statistics.median(
                theirs / own for theirs, own in zip(one.seconds, ours.seconds, strict=True)
            ),
            "rounds_milliseconds": [second * 1000 for second in one.seconds],
        }
        for name, one in found.items()
    ]
    print(
        f"{given.tokens} tokens, {given.rows} rows of {given.choices} choices, hidden "
        f"{given.hidden}, vocabulary {given.vocabulary:,}, {given.dtype} on {given.device}, "
        f"{torch.get_num_threads()} threads; gradients {gradients / MIB:,.0f} MiB; medians of "
        f"{given.rounds} rounds"
    )
    print(
        f"{'side':12} {'head MiB':>10} {'with gradients':>14} {'ms':>9} {'loss':>10} "
        f"{'memory x':>9} {'peak x':>7} {'time x':>7}"
    )
    for row in rows:
        print(
            f"{row['side']:12} {row['head_mib']:10,.2f} {row['with_gradients_mib']:14,.1f} "
            f"{row['milliseconds']:9,.1f} {row['loss']:10.6f} {row['head_memory_ratio']:9,.1f} "
            f"{row['peak_ratio']:7.1f} {row['time_ratio']:7.1f}"
        )
    tolerance = 1e-5 if given.dtype == "float32" else 1e-2
    worst = max(abs(one.loss - ours.loss) for one in found.values())
    if worst > tolerance * abs(ours.loss):
        raise SystemExit(f"losses differ by {worst}")
    print(json.dumps({**vars(given), "threads": torch.get_num_threads(), "sides": rows}))


if __name__ == "__main__":
    main()
