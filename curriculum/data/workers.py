"""Processes that share the reading of data: how many, how they start, and when they end."""

import ctypes
import os
import signal
import sys
import threading


def count(wanted: int | None) -> int:
    """`data.workers`, or one a core where it is null."""
    return wanted or len(os.sched_getaffinity(0))


def may_fork() -> bool:
    """A fork hands everything over for nothing, but copies only the thread that calls it."""
    return threading.active_count() == 1 and "torch" not in sys.modules


def follow(parent: int) -> None:
    """Called first by a worker: it leaves Ctrl-C to its parent, and does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)
