"""Which examples share a window: best-fit decreasing bin packing.

Johnson (1973): place the items in order of falling length, each into the fullest window that it
still fits. Windows are kept in lists by free space, and one big integer holds a bit per non-empty
list, so that the fullest fitting window is found by one shift. The loop runs per example.
"""

import numpy as np


def pack(lengths: np.ndarray, capacity: int) -> list[np.ndarray]:
    """Indices of the examples of each window, int64; every example once, no window above
    `capacity` tokens. Equal lengths keep their order, so the result is a function of `lengths`.

    Raises `ValueError` for a length outside 1..capacity: over-long examples are a policy that
    must have been applied before.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= capacity:
        raise ValueError(f"lengths {lengths.min()}..{lengths.max()} do not fit 1..{capacity}")
    windows: list[list[int]] = []
    by_space: dict[int, list[int]] = {}
    open_spaces = 0
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        fitting = open_spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            window = by_space[space].pop()
            if not by_space[space]:
                open_spaces ^= 1 << space
            windows[window].append(index)
        else:
            space, window = capacity, len(windows)
            windows.append([index])
        rest = space - length
        if rest:
            by_space.setdefault(rest, []).append(window)
            open_spaces |= 1 << rest
    return [np.array(window, dtype=np.int64) for window in windows]
