"""SIGTERM and SIGINT ask the loop to stop after its step; a second one ends at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """True once a signal asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __bool__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    request = StopRequest()

    def handle(number: int, frame: FrameType | None) -> None:
        if request.asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        request.asked = True

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
