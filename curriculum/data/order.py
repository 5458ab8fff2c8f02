"""Which record, and which window, comes at a position: pure functions of seed and phase.

Every draw has a name: the seed, the phase, and a path of labels such as `("chunk", 3)` or
`("epoch", 1)`. The name seeds numpy's SeedSequence, whose stream is fixed across numpy versions
(NEP 19 promises this for bit generators, not for `Generator.permutation`), so an order drawn today
is the order drawn after an upgrade. No generator state is ever saved: resuming is arithmetic.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np


def permutation(count: int, seed: int, phase: str, *labels: str | int) -> np.ndarray:
    """A permutation of `range(count)`, int64 [count], that depends on nothing but its arguments."""
    return np.argsort(_stream(seed, phase, *labels).random_raw(count), kind="stable")


def _stream(seed: int, phase: str, *labels: str | int) -> np.random.PCG64:
    name = "\x1f".join([phase, *(str(label) for label in labels)])
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    return np.random.PCG64(np.random.SeedSequence([seed, *(int(word) for word in words)]))


def record_order(
    counts: Sequence[int],
    weights: Sequence[float] | None,
    on_exhausted: Literal["stop", "repeat"],
    seed: int,
    phase: str,
) -> np.ndarray:
    """The rows of several sources, laid end to end, in the order in which a phase reads them.

    Without weights a permutation of all rows. With weights every stretch of the order holds the
    sources in proportion to them: record k of a source with weight w comes at time (k + u) / w,
    u uniform in [0, 1), which is stratified sampling. Time ends with the first source that is used
    up (`stop`) or with the last one, the others repeated in a new permutation each time (`repeat`).
    """
    if weights is None:
        return permutation(sum(counts), seed, phase)
    times = [count / weight for count, weight in zip(counts, weights, strict=True)]
    end = min(times) if on_exhausted == "stop" else max(times)
    rows, due = [], []
    for place, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        first = sum(counts[:place])
        drawn = round(end * weight)
        rounds = -(-drawn // count)
        orders = [permutation(count, seed, phase, "source", place, n) for n in range(rounds)]
        rows.append(first + np.concatenate([*orders, np.zeros(0, np.int64)])[:drawn])
        within = _stream(seed, phase, "time", place).random_raw(drawn) / 2.0**64
        due.append((np.arange(drawn) + within) / weight)
    return np.concatenate(rows)[np.argsort(np.concatenate(due), kind="stable")]


def window_index(position: int, count: int, seed: int, phase: str) -> int:
    """The window at a position, of a finished set of `count` windows.

    The first epoch is the prepared order; epoch e >= 1 is a permutation by (seed, phase, e).
    """
    if count < 1 or position < 0:
        raise ValueError(f"no window at position {position} of a set of {count}")
    epoch, row = divmod(position, count)
    return row if epoch == 0 else int(epoch_permutation(count, seed, phase, epoch)[row])


@lru_cache(maxsize=8)
def epoch_permutation(count: int, seed: int, phase: str, epoch: int) -> np.ndarray:
    """The order of windows in an epoch; kept for the next call because positions are asked one
    by one."""
    if epoch == 0:
        return np.arange(count)
    return permutation(count, seed, phase, "epoch", epoch)
