"""Which record, and which window, comes at a position: pure functions of seed and phase.

Every draw has a name: the seed, the phase, and a path of labels such as `("chunk", 3)` or
`("epoch", 1)`. The name seeds numpy's SeedSequence, whose stream is fixed across numpy versions
(NEP 19 promises this for bit generators, not for `Generator.permutation`), so an order drawn today
is the order drawn after an upgrade. No generator state is ever saved: resuming is arithmetic.
"""

import hashlib
from functools import lru_cache

import numpy as np


def permutation(count: int, seed: int, phase: str, *labels: str | int) -> np.ndarray:
    """A permutation of `range(count)`, int64 [count], that depends on nothing but its arguments."""
    name = "\x1f".join([phase, *(str(label) for label in labels)])
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    bits = np.random.PCG64(np.random.SeedSequence([seed, *(int(word) for word in words)]))
    return np.argsort(bits.random_raw(count), kind="stable")


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
