"""Signals are sent to processes of their own, which say where they got them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import contextlib, os, signal, sys, threading, time
from curriculum.faults.signals import Interrupted, StopRequest, stop_on_signal

def say(text):
    print(text, flush=True)

def nap(seconds):
    say("asleep")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)

def hang():
    # waits in C for a mutex that it holds itself; no signal wakes it
    import ctypes
    mutex = ctypes.create_string_buffer(64)
    lib = ctypes.CDLL(None)
    lib.pthread_mutex_lock(mutex)
    say("asleep")
    lib.pthread_mutex_lock(mutex)
"""


def run(code: str, *signals: int, between: float = 0.0, **env: str) -> tuple[int, list[str], str]:
    """Exit code, lines and errors of a process that gets signals once it says `asleep`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "asleep":
                break
        for number in signals:
            time.sleep(between)
            process.send_signal(number)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, [*lines, *out.splitlines()], errors


def test_the_first_signal_raises() -> None:
    code = """
with stop_on_signal() as stop:
    try:
        try:
            nap(20)
        except Exception:
            say("taken for a fault")
    except Interrupted:
        say(f"raised {stop.asked}")
"""
    for number in (signal.SIGTERM, signal.SIGINT):
        assert run(code, number)[:2] == (0, ["asleep", "raised True"])


def test_it_is_only_noted_where_that_is_asked_for() -> None:
    code = """
with stop_on_signal() as stop:
    with stop.deferred():
        nap(0.5)
        say(f"noted {stop.asked}")
        with contextlib.suppress(Interrupted), stop.interruptible():
            say("never")
        with contextlib.suppress(Interrupted):
            stop.check()
            say("never")
    say("end")
"""
    assert run(code, signal.SIGTERM)[:2] == (0, ["asleep", "noted True", "end"])


def test_a_part_may_be_interruptible_and_what_follows_is_not() -> None:
    code = """
with stop_on_signal() as stop, stop.deferred():
    with contextlib.suppress(Interrupted), stop.interruptible():
        nap(20)
    signal.raise_signal(signal.SIGWINCH)
    say(f"went on {stop.asked} {stop.raises}")
"""
    assert run(code, signal.SIGINT)[:2] == (0, ["asleep", "went on True False"])


def test_the_second_one_ends_at_once() -> None:
    code = """
with stop_on_signal() as stop, stop.deferred():
    nap(20)
"""
    status, lines, errors = run(code, signal.SIGTERM, signal.SIGTERM, between=0.2)
    assert (status, lines) == (75, ["asleep"])
    assert "second signal" in errors and "the same command" in errors


def test_the_second_one_ends_a_process_that_hangs_outside_python() -> None:
    code = """
with stop_on_signal() as stop, stop.watched(), stop.deferred():
    hang()
"""
    assert run(code, signal.SIGTERM, signal.SIGINT, between=0.3)[0] == 75


def test_one_that_may_be_interrupted_and_hangs_is_ended_after_its_grace_time() -> None:
    code = """
with stop_on_signal() as stop, stop.watched(grace_seconds=0.5):
    hang()
"""
    began = time.monotonic()
    status, _, errors = run(code, signal.SIGTERM)
    assert status == 75 and "within 0.5 s" in errors
    assert time.monotonic() - began < 15


def test_a_deferred_process_has_all_the_time_it_needs() -> None:
    """And so has what it does once nothing is deferred any more."""
    code = """
with stop_on_signal() as stop, stop.watched(grace_seconds=0.2):
    with stop.deferred():
        nap(1.0)
        say(f"done {stop.asked}")
    nap(1.0)
"""
    assert run(code, signal.SIGTERM)[:2] == (0, ["asleep", "done True", "asleep"])


def test_torchrun_repeats_what_the_terminal_sent() -> None:
    code = """
with stop_on_signal() as stop, stop.watched(), stop.deferred():
    nap(1.0)
    say("done")
"""
    twice = (signal.SIGINT, signal.SIGINT)
    assert run(code, *twice, between=0.1, TORCHELASTIC_RUN_ID="x")[:2] == (0, ["asleep", "done"])
    late = run(code.replace("1.0", "20"), *twice, between=3.2, TORCHELASTIC_RUN_ID="x")
    assert late[0] == 75


def test_handlers_and_descriptors_are_given_back() -> None:
    code = """
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
files = os.listdir("/proc/self/fd")
with stop_on_signal() as stop, stop.watched():
    say(signal.getsignal(signal.SIGTERM) == stop.handle)
say((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before)
say(signal.set_wakeup_fd(-1) == -1 and os.listdir("/proc/self/fd") == files)
say(threading.active_count())
"""
    assert run(code)[1] == ["True", "True", "True", "1"]


def test_outside_the_main_thread_nothing_is_handled() -> None:
    code = """
def work():
    with stop_on_signal() as stop, stop.watched(), stop.interruptible():
        say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert run(code)[1] == ["True"]
