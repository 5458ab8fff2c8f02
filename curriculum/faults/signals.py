"""SIGTERM and SIGINT: stop where nothing is lost, on all ranks together; a second one ends at once.

Code is either `interruptible`, where the first signal raises `Interrupted` (preparing data, looking
at files, decoding: work that can simply be done again), or `deferred`, where it is only noted and
the loop asks for it between its steps. Everything is interruptible until the training loop says
otherwise.

Python runs signal handlers in the main thread only, between two bytecodes. A rank that waits for
another one inside a collective would not notice. So while ranks train together each has a watching
thread: it learns of a signal at once through `signal.set_wakeup_fd`, tells the other ranks through
the store of the process group, and hears from them in the same way.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

INTERRUPTED = 75
SIGNALS = (signal.SIGTERM, signal.SIGINT)

# torchrun hands a signal on that the terminal or Slurm has sent to its processes already
_ECHO_SECONDS = 3.0
_POLL_SECONDS = 0.5


class Interrupted(KeyboardInterrupt):
    """A signal asked to stop. No `Exception`, so that nothing on the way takes it for a fault."""


class StopRequest:
    """Whether a signal asked to stop, and what a signal does to the code that runs now."""

    def __init__(self) -> None:
        self.asked = False
        self.handled = False  # the main thread knows
        self._raises = True
        self._first: float | None = None
        self._echo = _ECHO_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        self._watcher: _Watcher | None = None

    def __bool__(self) -> bool:
        return self.asked

    def check(self) -> None:
        """Raise `Interrupted` if a signal asked to stop."""
        if self.asked:
            raise Interrupted

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In here a signal is only noted."""
        before, self._raises = self._raises, False
        try:
            yield
        finally:
            self._raises = before

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """In here the first signal raises `Interrupted`, also one that came before.

        Only for work of this process alone: a rank that leaves a collective keeps the others
        waiting.
        """
        before, self._raises = self._raises, True
        try:
            self.check()
            yield
        finally:
            self._raises = before

    @contextmanager
    def watched(
        self, grace_seconds: float | None = None, tick: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Hear of signals at once, on every rank, while this process waits for others.

        `grace_seconds`: a process that is interruptible and hangs outside Python for so long after
        a signal is ended. `tick` is called about twice a second, in another thread.
        Other ranks are reached from `reach_ranks` on.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._watcher = _Watcher(self, grace_seconds, tick)
        try:
            yield
        finally:
            watcher, self._watcher = self._watcher, None
            watcher.close()

    def reach_ranks(self, start: str) -> None:
        """Call on every rank, once the process group is there, inside `watched`. `start` names this
        start, equally on every rank: a store may hold what an earlier one wrote."""
        if self._watcher is not None:
            self._watcher.store = _shared_store(start)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler. It runs in the main thread, as late as Python lets it."""
        if self._watcher is None:
            self.count()
        self.asked = self.handled = True
        if self._raises:
            self._raises = False  # not again, while this one unwinds
            raise Interrupted

    def count(self) -> None:
        """Note a signal; the second one ends the process."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= self._echo:
            end_at_once("ended at once by a second signal")
        self.asked = True

    @property
    def raises(self) -> bool:
        return self._raises


class _Watcher:
    """The watching thread of one process."""

    def __init__(
        self,
        request: StopRequest,
        grace_seconds: float | None,
        tick: Callable[[], None] | None,
    ) -> None:
        self._request, self._grace, self._tick = request, grace_seconds, tick
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._own = 0  # signals that this thread sent to the main thread
        self._told = False
        self._since: float | None = None
        self._closing = False
        self.store: Store | None = None
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        self._closing = True
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _watch(self) -> None:
        while not self._closing:
            ready, _, _ = select.select([self._reader], [], [], _POLL_SECONDS)
            for number in os.read(self._reader, 64) if ready else b"":
                self._heard(number)
            self._share()
            self._force()
            if self._tick is not None:
                self._tick()

    def _heard(self, number: int) -> None:
        if number not in SIGNALS:
            return
        if self._own:
            self._own -= 1
        else:
            self._request.count()

    def _share(self) -> None:
        """Tell the other ranks, or hear from them. Without the store (rank 0 has ended) the ranks
        still agree wherever the loop asks them all."""
        if self.store is None or self._told:
            return
        try:
            if self._request.asked:
                self.store.set("stop", "asked")
                self._told = True
            elif self.store.check(["stop"]):
                self._told = self._request.asked = True
                self._own += 1
                # wakes the main thread out of a sleep, and lets the handler raise where it may
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        except (RuntimeError, OSError):  # torch.distributed's errors of a store that is gone
            self.store = None

    def _force(self) -> None:
        request = self._request
        if not request.asked or request.handled or not request.raises or self._grace is None:
            self._since = None
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > self._grace:
            end_at_once(f"did not stop by itself within {self._grace:g} s")


def end_at_once(why: str) -> None:
    """End this process now. What is committed stays; the same command goes on from there."""
    with suppress(OSError):
        os.write(
            sys.__stderr__.fileno() if sys.__stderr__ else 2,
            f"{why}; the same command goes on from the last checkpoint\n".encode(),
        )
    os._exit(INTERRUPTED)


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Handle SIGTERM and SIGINT in this block. Outside the main thread, which alone may do that,
    nothing is handled."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request.handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _shared_store(start: str) -> "Store | None":
    """A connection of this thread's own to the store through which the ranks found one another."""
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "MASTER_PORT" not in os.environ:
        return None
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
    )
    return dist.PrefixStore(f"curriculum/{start}", store)
