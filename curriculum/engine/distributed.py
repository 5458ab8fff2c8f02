"""Process group, device mesh, threads: one code path for one process and for many.

`torchrun` gives the environment; without it a group of one is made in this process, so that FSDP2
and its traps are the same everywhere.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from curriculum.config import Engine
from curriculum.errors import RunError, UserError
from curriculum.faults.signals import Interrupted, StopRequest

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process's place. `mesh` has one axis (shard) or two (replicate, shard) for HSDP."""

    rank: int
    size: int
    replicate: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather_rows(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's rows, in rank order, on every rank, bit for bit.

        rows `[n, ...]` on this world's device, n of each rank's own choosing (0 too); dtype and
        the other dimensions alike. Ranks send as many rows as the longest has: collectives of
        unequal sizes do not exist everywhere.
        """
        if self.size == 1:
            return [rows]
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.empty_like(count) for _ in range(self.size)]
        dist.all_gather(counts, count)
        lengths = torch.cat(counts).tolist()
        padded = rows.new_zeros((max(lengths), *rows.shape[1:]))
        padded[: len(rows)] = rows
        shares = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(shares, padded)
        return [share[:length] for share, length in zip(shares, lengths, strict=True)]

    def gather(self, value: object) -> list[object]:
        """One picklable object of every rank, in rank order, on every rank. Not for training."""
        if self.size == 1:
            return [value]
        gathered: list[object] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def from_main(self, find: Callable[[], T]) -> T:
        """What `find` returns on rank 0, a picklable object, on every rank. Not for training.

        A `UserError` or `RunError` that it raises is raised on every rank.
        """
        found: list[Any] = [None]
        if self.is_main:
            try:
                found = [find()]
            except (UserError, RunError) as error:
                found = [_Raised(error)]
        if self.size > 1:
            dist.broadcast_object_list(found, src=0)
        if isinstance(found[0], _Raised):
            raise found[0].error
        return found[0]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def stop_asked(self, stop: StopRequest) -> bool:
        """Whether a signal asked any rank to stop: the same answer on every rank."""
        if self.size == 1:
            return stop.asked
        # on the CPU: a device would have to finish all that it was given first
        asked = torch.tensor(float(stop.asked))
        dist.all_reduce(asked)
        return bool(asked > 0)

    def stop_together(self, stop: StopRequest) -> None:
        """Raise `Interrupted` on every rank once a signal asked any of them to stop."""
        if self.stop_asked(stop):
            raise Interrupted


@dataclass(frozen=True)
class _Raised:
    error: UserError | RunError


def default_threads() -> int:
    """OMP_NUM_THREADS where a user set it, else the cores of this machine shared by its processes.

    Under `torchrun` the variable is not the user's: torchrun sets it to 1.
    """
    processes = os.environ.get("LOCAL_WORLD_SIZE")
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if processes is None and wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return max(1, len(os.sched_getaffinity(0)) // int(processes or "1"))


@contextmanager
def world(engine: Engine) -> Iterator[World]:
    """Start the process group, and end it also when the body fails.

    Raises `UserError` if `engine.replicate` does not divide the number of processes, `RunError`
    where the body finds another rank's process gone.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size % engine.replicate:
        raise UserError(
            f"engine.replicate={engine.replicate}: must divide the number of processes ({size})"
        )
    torch.set_num_threads(engine.threads or default_threads())
    device = _device()
    timeout = timedelta(seconds=engine.timeout_seconds)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        _join(backend, size, timeout)
    else:
        dist.init_process_group(
            backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout
        )
    try:
        if engine.replicate > 1:
            shape, names = (engine.replicate, size // engine.replicate), ("replicate", "shard")
            mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        else:
            mesh = init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
        yield World(dist.get_rank(), size, engine.replicate, device, mesh)
    except RuntimeError as error:
        if not lost_contact(error):
            raise
        raise RunError(
            f"rank {dist.get_rank()}: lost another rank, whose own message says why; all ranks "
            "end, and the same command goes on from the last checkpoint"
        ) from error
    finally:
        dist.destroy_process_group()


def lost_contact(error: Exception) -> bool:
    """True for what collectives raise once the process at the other end has died."""
    return (
        isinstance(error, RuntimeError)
        and dist.get_world_size() > 1
        and bool(_LOST.search(str(error)))
    )


_LOST = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|[Rr]emote process exited|"
    r"Socket closed|NCCL.*(system error|remote error|aborted)",
)


def _join(backend: str, size: int, timeout: timedelta) -> None:
    """Meet the other ranks."""
    rank = int(os.environ["RANK"])
    try:
        store = _own_store(timeout)
        if store is None:
            dist.init_process_group(backend, timeout=timeout)
        else:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timeout
            )
    except RuntimeError as error:  # torch.distributed's errors are, each by another name
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        raise RunError(
            f"rank {rank} of {size}: did not meet the other ranks ({cause[:200]}); one of them may "
            "have ended before: its own message says why"
        ) from error


def _own_store(timeout: timedelta) -> dist.Store | None:
    """A part of torchrun's store for this start alone, where torchrun runs on one machine.

    torchrun keeps one store over its restarts, and ranks that start again would find the addresses
    of dead ones in it and wait for them (pytorch/pytorch#135712). On several machines each torchrun
    counts its restarts for itself, so that no number names the start for all:
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 gives every start a new store there.
    """
    place = os.environ
    if place.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    if place["LOCAL_WORLD_SIZE"] != place["WORLD_SIZE"]:
        return None
    address, port = place["MASTER_ADDR"], int(place["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=timeout)
    return dist.PrefixStore(f"start_{place['TORCHELASTIC_RESTART_COUNT']}", store)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() == 1:  # Slurm may show each rank its own GPU alone
        index = 0
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
