"""Where the time of a step goes, without making the device wait.

On a CPU the clock is read before and after. On a GPU work is only queued by then: events are put
into its queue instead, and their times are read once they have passed, a step or so later.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds by part, of a device's own work on a GPU, else by the clock."""

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the time of the body to a part. Bodies must not nest."""
        if self._events:
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            yield
            end.record()
            self._pending.append((part, start, end))
        else:
            began = time.perf_counter()
            yield
            self._seconds[part] += time.perf_counter() - began

    def take(self) -> dict[str, float]:
        """Seconds by part since the last call, as far as they are known; waits for nothing."""
        while self._pending and self._pending[0][2].query():
            part, start, end = self._pending.popleft()
            self._seconds[part] += start.elapsed_time(end) / 1e3
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken
