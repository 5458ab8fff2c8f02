"""One start at a time for a run directory.

`run.lock` names the process that trains there: host, process id, and when that process began, since
ids are used again. A record whose process is gone is taken over. On another host a process cannot
be looked up; there the lock counts as left behind once its file has not been touched for a while.
Under `torchrun` rank 0 holds the lock for all ranks, and the record names `torchrun` too: it stays
the holder while it starts its workers again. Slurm runs a job once at a time: what an earlier start
of the same job left behind, perhaps on a node that failed, is taken over.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from curriculum.errors import RunError
from curriculum.files import locked, write_json

NAME = "run.lock"
_BEAT_SECONDS = 15.0


@dataclass(frozen=True)
class Process:
    """A process that can be told from a later one of the same id. `started`: clock ticks after
    the boot that `boot` names; both empty where the system does not tell."""

    pid: int
    started: str = ""
    boot: str = ""

    @property
    def alive(self) -> bool:
        return self.pid > 0 and process(self.pid) == self


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. `host` has the process-id namespace too: containers share host names."""

    host: str
    worker: Process
    launcher: Process | None
    token: str
    job: str = ""  # that of Slurm, and which of its starts
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    def __str__(self) -> str:
        name = f"process {self.worker.pid}"
        if self.launcher is not None:
            name += f" of torchrun {self.launcher.pid}"
        return f"{name} on {self.host.split('/')[0]}, since {self.since}"


class Held(RunError):
    """Another process trains in the directory."""


class RunLock:
    """The lock of one run directory, held by this process."""

    def __init__(self, directory: Path, stale_seconds: float | None) -> None:
        self.path = directory / NAME
        self._stale = stale_seconds
        self.holder = _this_process()
        self._beaten = time.monotonic()
        self._made = [path for path in self.path.parents if not path.exists()]

    def acquire(self) -> str | None:
        """Take the lock; a note if it had been left behind. Raises `Held` if it is another's."""
        with self._guarded():
            found = read(self.path)
            if found is not None and self._is_held(found):
                raise Held(self._refusal(found))
            write_json(self.path, asdict(self.holder))
        if found is None or found.launcher == self.holder.launcher is not None:
            return None
        return f"{self.path}: taken over from {found}, which has ended"

    def confirm(self) -> None:
        """Raises `Held` if the lock was taken over meanwhile, as left behind."""
        found = read(self.path)
        if found is None or found.token != self.holder.token:
            other = "was removed" if found is None else f"is {found}"
            raise Held(f"{self.path}: {other}; this start ends, so that only one trains here")

    def beat(self) -> None:
        """Show other hosts that this process lives. Cheap; call it often."""
        if time.monotonic() - self._beaten > _BEAT_SECONDS:
            self._beaten = time.monotonic()
            with suppress(OSError):  # a full or lost disk is told where something is written
                os.utime(self.path)

    def release(self) -> None:
        """Let the lock go, and leave no empty directory that was not there before."""
        with suppress(OSError, RunError), self._guarded():
            found = read(self.path)
            if found is not None and found.token == self.holder.token:
                self.path.unlink()
        with suppress(OSError):
            for path in self._made:
                path.rmdir()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """One process at a time reads and changes the record. The guard's file goes with it."""
        guard = self.path.with_name(f".{NAME}.guard")
        while True:
            with locked(guard) as handle:
                if not _is_file(guard, handle):  # its last holder removed it meanwhile
                    continue
                try:
                    yield
                finally:
                    guard.unlink(missing_ok=True)
                return

    def _is_held(self, found: Holder) -> bool:
        if _earlier_start(found.job, self.holder.job):
            return False
        if found.host != self.holder.host:
            return self._stale is None or _age(self.path) < self._stale
        if found.launcher is not None and found.launcher == self.holder.launcher:
            return False  # an earlier attempt of our own torchrun, which ended all its workers
        return found.worker.alive or (found.launcher is not None and found.launcher.alive)

    def _refusal(self, found: Holder) -> str:
        text = f"{self.path.parent}: {found}, trains here; "
        if found.host == self.holder.host:
            return text + "wait for it, or give this run a directory of its own (run.dir=DIR)"
        until = "" if self._stale is None else f", which happens by itself after {self._stale:g} s"
        return text + f"once that process is gone, delete {self.path} to go on{until}"


@contextmanager
def held(directory: Path, stale_seconds: float | None) -> Iterator[tuple[RunLock, str | None]]:
    """Hold the lock of a run directory; with a note if it was taken over. Raises `Held`."""
    lock = RunLock(directory, stale_seconds)
    note = lock.acquire()
    try:
        yield lock, note
    finally:
        lock.release()


def read(path: Path) -> Holder | None:
    """The record of a lock; None if there is none that can be understood."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        launcher = values["launcher"]
        return Holder(
            values["host"],
            Process(**values["worker"]),
            None if launcher is None else Process(**launcher),
            values["token"],
            values.get("job", ""),
            values["since"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def process(pid: int) -> Process | None:
    """A process by its id, None if there is none or it has ended (a zombie)."""
    try:
        # the name in parentheses may hold spaces and parentheses itself
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _without_proc(pid)
    return None if status[0] in "ZX" else Process(pid, status[19], boot)


def _without_proc(pid: int) -> Process | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return Process(pid)
    return Process(pid)


def _this_process() -> Holder:
    own = process(os.getpid()) or Process(os.getpid())
    launcher = process(os.getppid()) if "TORCHELASTIC_RUN_ID" in os.environ else None
    return Holder(_host(), own, launcher, f"{own.pid}-{os.urandom(6).hex()}", _job())


def _job() -> str:
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{job} {os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else ""


def _earlier_start(found: str, own: str) -> bool:
    """True for two starts of one job that are not the same."""
    return found != own and found.partition(" ")[0] == own.partition(" ")[0] != ""


def _host() -> str:
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()}/{space}"


def _is_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _age(path: Path) -> float:
    """Seconds since a file was touched, by the clock of its file system."""
    probe = path.with_name(f".{path.name}.{os.getpid()}.now")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink()
        return now - path.stat().st_mtime
    except OSError:
        return 0.0
