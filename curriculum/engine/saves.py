"""Checkpoints of a run, written while it trains on.

A save copies the state into host memory, which is all that training waits for; one thread writes
the copy by DCP, over a process group of its own, and rank 0 commits it there once every rank's
files are synced. At most one save is on its way: the next one, and the end, wait for it. What
cannot be written (full disk, read-only directory) is said in one line and counted; training goes
on, and the last good checkpoint stays.

Every rank makes the same calls. Whatever decides between branches with collectives is agreed over
the ranks first: the clock and the free space are rank 0's, and so is the outcome of a save.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from curriculum import store
from curriculum.config import Checkpoint
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World
from curriculum.engine.optim.gradients import local
from curriculum.errors import RunError
from curriculum.store import retention
from curriculum.terminal import size_text

# bytes that a file needs for one tensor of one rank, besides its values
ENTRY_BYTES = 2048

log = logging.getLogger(__name__)

Then = Callable[[Path], None]


@dataclass(frozen=True)
class Outcome:
    """How a save ended: `problem` is None once it is committed."""

    directory: Path
    problem: str | None = None


class Saves:
    """The checkpoints of one run, in `directory`. `good`: the newest one known to be whole.

    `damaged` ones are deleted after the first good commit. Counters are this process's: `written`,
    `failed`, bytes `written_bytes` of all ranks, and `waited`, the seconds that training stood
    still for saves.
    """

    def __init__(
        self,
        directory: Path,
        world: World,
        policy: Checkpoint,
        *,
        good: Path | None = None,
        damaged: Collection[Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory, self.good = directory, good
        self.written, self.failed, self.written_bytes = 0, 0, 0
        self.waited = 0.0
        self.problem: str | None = None  # of the newest save
        self.last_problem: str | None = None  # of the newest that failed
        self._world, self._policy, self._clock = world, policy, clock
        self._damaged = {path for path in damaged if path.parent == directory}
        self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._stager = _stager(world.device)
        self._reserved: Future[None] | None = None
        self._flying: Future[Outcome] | None = None
        self._owed: dict[Path, Then] = {}  # calls that are made until they succeed
        self._told: set[str] = set()
        self._saved_at = clock()
        if world.is_main:
            store.clear_unfinished(directory)
        world.barrier()

    def reserve(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take the memory that copies will lie in, beside training: the first save would otherwise
        wait for new pages. Pinned memory is left to the first save."""
        if isinstance(self._stager, _HostCopies):
            touch = self._stager.reserve(checkpoint.expected(model, optimizer))
            self._reserved = self._thread.submit(touch)

    def due(self, phase_step: int) -> bool:
        """True if the schedule asks for a save after so many steps of the phase."""
        steps, minutes = self._policy.every_steps, self._policy.every_minutes
        if steps is not None and phase_step % steps == 0:
            return True
        if minutes is None:
            return False
        late = self._world.is_main and self._clock() - self._saved_at >= 60 * minutes
        flag = torch.tensor(float(late), device=self._world.device)
        return bool(self._world.sum(flag) > 0)

    def start(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        meta: Mapping[str, Any],
        then: Then | None = None,
        owed: Then | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Begin to save tensors and `meta`, plain values, as they are now.

        `before` is called on rank 0, in the thread, before anything is committed.
        `then` and `owed` are called on rank 0, in the thread, with the committed directory. `owed`
        is called again after later saves until it succeeds, and the directory stays until then.
        """
        self.wait()
        began = time.perf_counter()
        self._saved_at = self._clock()
        if self._reserved is not None:
            self._reserved = self._reserved.result()
        directory = self.directory / f"step_{step}"
        state = checkpoint.tensors(model, optimizer)
        size = self._size(state)
        problem = self._world.from_main(lambda: self._refusal(directory, size))
        if problem is None:
            frozen = json.loads(json.dumps(meta, allow_nan=False))
            staged = self._stager.stage(state)
            calls = [then, owed, before]
            self._flying = self._thread.submit(self._write, staged, directory, size, frozen, *calls)
        else:
            self._report(Outcome(directory, problem))
            self._settle(Outcome(directory, problem))
        self.waited += time.perf_counter() - began

    def owe(self, directory: Path, call: Then) -> None:
        """Have a checkpoint that lies there already stay, and this called, as by `start`."""
        self._owed[directory] = call

    def idle(self) -> bool:
        """True if nothing is on its way, as far as this rank knows."""
        return self._flying is None or self._flying.done()

    def wait(self) -> str | None:
        """Until nothing is on its way. Why the newest save failed, None if it did not."""
        if self._flying is not None:
            began = time.perf_counter()
            outcome, self._flying = self._flying.result(), None
            self._settle(self._world.from_main(lambda: outcome))
            self.waited += time.perf_counter() - began
        return self.problem

    def close(self) -> None:
        """End the thread, whatever other ranks do; a save on its way is finished if it can be."""
        self._thread.shutdown(wait=True)
        self._stager.close()

    def summary(self) -> list[str]:
        """What to say of the saves at the end of a run."""
        lines = []
        if self.written:
            lines.append(
                f"checkpoints: {self.written} written ({size_text(self.written_bytes)} in all), "
                f"training waited {self.waited:.1f} s for them"
            )
        if self.failed:
            lines.append(
                f"checkpoints: {self.failed} not written ({self.last_problem}); the last good one "
                f"is {self.good or 'none'}"
            )
        if self._owed:
            left = ", ".join(path.name for path in self._owed)
            lines.append(f"checkpoints: {left} kept, since store.dir took no copy (see above)")
        return lines

    def _size(self, state: checkpoint.State) -> int:
        """Bytes on disk of a state, all ranks together, at most."""
        own = checkpoint.own_tensors(state)
        values = sum(tensor.numel() * tensor.element_size() for tensor in own)
        total = values / self._world.replicate + len(own) * ENTRY_BYTES
        flag = torch.tensor(total, dtype=torch.float64, device=self._world.device)
        return int(self._world.sum(flag))

    def _refusal(self, directory: Path, size: int) -> str | None:
        """Why a save cannot even begin. Leaves an empty place for it otherwise."""
        temporary = checkpoint.unfinished(directory)
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            free = shutil.disk_usage(temporary).free
            if free >= size:
                return None
            os.rmdir(temporary)
        except OSError as error:
            return f"{error.strerror}: {self.directory}"
        return (
            f"needs {size_text(size)}, {size_text(free)} are free in {self.directory}; make room "
            "or lower checkpoint.keep_last"
        )

    def _write(
        self,
        staged: checkpoint.State,
        directory: Path,
        size: int,
        meta: Mapping[str, Any],
        then: Then | None,
        owed: Then | None,
        before: Callable[[], None] | None,
    ) -> Outcome:
        """In the thread. Never raises: nobody would see it before the next save."""
        try:
            if before is not None and self._world.is_main:
                before()
            checkpoint.write(staged, directory, meta, self._group)
        except Exception as error:
            outcome = Outcome(directory, str(error) if isinstance(error, RunError) else repr(error))
            self._report(outcome)
            return outcome
        if self._world.is_main:
            self.written_bytes += size
            self._after(directory, then, owed)
        return Outcome(directory)

    def _after(self, directory: Path, then: Then | None, owed: Then | None) -> None:
        """What follows a commit, on rank 0: a fault of it leaves the checkpoint as it is."""
        if owed is not None:
            self._owed[directory] = owed
        if then is not None:
            self._tried(directory, then, "")
        again = "; tried again after every save, and the checkpoint stays until then"
        for waiting, call in list(self._owed.items()):
            if self._tried(waiting, call, again):
                del self._owed[waiting]
        try:
            for broken in self._damaged - {directory}:
                if store.damage(broken) is not None:  # one of another model may be of use
                    store.discard(broken)
            self._damaged = set()
            newest = int(directory.name.removeprefix("step_"))
            retention.rotate(self.directory, newest, self._policy, self._owed)
        except OSError as error:
            log.warning(
                "%s: an old checkpoint is not deleted: %s; training goes on",
                self.directory,
                checkpoint.cause(error),
            )

    def _tried(self, directory: Path, call: Then, again: str) -> bool:
        try:
            call(directory)
        except (OSError, RunError) as error:
            cause = checkpoint.cause(error)
            text = f"{directory.name}: saved, but {cause}; training goes on{again}"
            if text not in self._told:
                self._told.add(text)
                log.warning("%s", text)
            return False
        return True

    def _settle(self, outcome: Outcome) -> None:
        self.problem = outcome.problem
        if outcome.problem is None:
            self.good = outcome.directory
            self.written += 1
            return
        self.failed += 1
        self.last_problem = outcome.problem

    def _report(self, outcome: Outcome) -> None:
        if self._world.is_main:
            log.warning(
                "%s: not saved: %s; training goes on, the last good checkpoint is %s",
                outcome.directory.name,
                outcome.problem,
                self.good or "none",
            )


class _HostCopies:
    """Copies of tensors that lie in host memory already, in places kept from save to save."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], torch.Tensor] = {}

    @torch.no_grad()
    def stage(self, state: checkpoint.State) -> checkpoint.State:
        return {part: self._copy((part,), values) for part, values in state.items()}

    def reserve(self, state: checkpoint.State) -> Callable[[], None]:
        """Places for the tensors of a state. To be called once, in any thread: it touches them."""
        for part, values in state.items():
            self._place((part,), values)
        places = [local(tensor) for tensor in self._kept.values()]

        def touch() -> None:
            for tensor in places:
                tensor.zero_()

        return touch

    def close(self) -> None:
        self._kept.clear()

    def _place(self, place: tuple[str, ...], value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                self._place((*place, name), inner)
        else:
            self._kept[place] = torch.empty_like(value)

    def _copy(self, place: tuple[str, ...], value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._copy((*place, name), inner) for name, inner in value.items()}
        kept = self._kept.get(place)
        if kept is None:
            kept = self._kept[place] = value.clone()
        else:
            local(kept).copy_(local(value))
        return kept


def _stager(device: torch.device) -> _HostCopies | DefaultStager:
    """Host memory is taken once and kept: new pages cost more time than the copy itself."""
    if device.type == "cpu":
        return _HostCopies()
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=True,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=True,
        )
    )
