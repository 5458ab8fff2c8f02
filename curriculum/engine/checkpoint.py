"""Sharded tensors by parameter name, into and out of a checkpoint directory (see `store`).

`torch.distributed.checkpoint` with plain names instead of `get/set_state_dict`: those take a step
on an empty optimizer, and drop the moments of parameters that had no gradient yet. When to save,
and how training goes on meanwhile, is in `saves`.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException

from curriculum import store
from curriculum.engine import lora
from curriculum.engine.distributed import World
from curriculum.engine.optim import empty_moment, moment_names
from curriculum.engine.optim.gradients import local
from curriculum.engine.shards import Writer
from curriculum.errors import RunError

State = dict[str, Any]


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """`{"model": {name: weight}, "optim": {name: {moment: tensor}}}`, the tensors themselves.

    Tied weights appear once; parameters without moments (frozen, or without a gradient so far) are
    in `model` alone.
    """
    names = dict(model.named_parameters())
    return {
        "model": {name: p.detach() for name, p in names.items()},
        "optim": {
            name: dict(optimizer.state[p]) for name, p in names.items() if optimizer.state[p]
        },
    }


def expected(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """A state as it will be once every parameter has had a gradient. Only shapes, layouts and types
    are meant: a weight stands for each moment that is like it."""
    kept = moment_names(optimizer)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return {
        "model": weights,
        "optim": {
            name: {
                kind: empty_moment(kind, p) if kind == "step" else weights[name] for kind in kept[p]
            }
            for name, p in model.named_parameters()
            if p in kept and p.requires_grad
        },
    }


def own_tensors(state: State) -> list[torch.Tensor]:
    """This rank's parts of the tensors of a state."""
    moments = [tensor for kept in state["optim"].values() for tensor in kept.values()]
    return [local(tensor) for tensor in (*state["model"].values(), *moments)]


def unfinished(directory: Path) -> Path:
    """Where a checkpoint lies until it is committed."""
    return directory.with_name(f".{directory.name}.tmp")


def write(
    state: State, directory: Path, meta: Mapping[str, Any], group: dist.ProcessGroup | None = None
) -> None:
    """Write tensors and commit. Every rank of `group` calls this, and of no other collective on it.

    Rank 0 commits once every rank's files are synced. Raises `RunError` where that is impossible,
    on every rank if writing failed on one, on rank 0 alone if only committing did; the unfinished
    directory is gone then.
    """
    temporary = unfinished(directory)
    writer = Writer(temporary / "state")
    main = dist.get_rank() == 0
    try:
        dcp.save(state, storage_writer=writer, process_group=group)
        digests: list[Any] | None = [None] * dist.get_world_size() if main else None
        dist.gather_object(writer.digests, digests, group=group)
        if main:
            merged = {f"state/{n}": crc for own in digests or [] for n, crc in own.items()}
            store.commit(temporary, directory, meta, merged)
    # CheckpointException derives from BaseException
    except (OSError, RuntimeError, RunError, CheckpointException) as error:
        if main:
            shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(cause(error)) from None


def save(
    directory: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: Mapping[str, Any],
    world: World,
) -> None:
    """Write a checkpoint and return once it is committed. Every rank calls this."""
    if world.is_main:
        shutil.rmtree(unfinished(directory), ignore_errors=True)
    world.barrier()
    write(tensors(model, optimizer), directory, meta)
    world.barrier()


def load(
    directory: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    *,
    checked: bool = False,
) -> None:
    """Read weights, and moments if an optimizer is given, into sharded tensors in place.

    The checkpoint says which parameters have moments; the others keep none. Every rank calls this,
    and first compares a share of the files with their checksums, unless that was done (`checked`).
    Raises `RunError`, on every rank alike, if the checkpoint is damaged, or of another model or
    optimizer.
    """
    names = dict(model.named_parameters())
    state: State = {}
    problem = None
    try:
        if (reason := None if checked else _corruption(directory)) is not None:
            raise RunError(f"{directory}: broken checkpoint: {reason}")
        reader = FileSystemReader(directory / "state")
        stored = _sizes(reader)
        saved = {key.removeprefix("model.") for key in stored if key.startswith("model.")}
        if optimizer is None and (plain := lora.base_names(names)).keys() == saved:
            names = plain  # weights without adapters: those of the model keep their own
        _check_model(directory, stored, saved, names)
        state["model"] = {name: p.detach() for name, p in names.items()}
        if optimizer is not None:
            state["optim"] = _moments_to_fill(directory, set(stored), names, optimizer)
    except RunError as error:
        problem = str(error)
    except Exception as error:
        problem = f"{directory}: cannot be read as a checkpoint ({cause(error)})"
    _raise_alike(problem)
    try:
        dcp.load(state, storage_reader=reader)
    # CheckpointException derives from BaseException
    except (Exception, CheckpointException) as error:
        problem = f"{directory}: cannot be read as a checkpoint ({cause(error)})"
    _raise_alike(problem)
    if optimizer is not None:
        optimizer.state.clear()
        for name, moments in state["optim"].items():
            optimizer.state[names[name]] = moments


def cause(error: BaseException) -> str:
    """The first line that says what went wrong, out of what DCP gathered from the ranks."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (inner, _) = sorted(error.failures.items())[0]
        where = f" (rank {rank})" if dist.get_world_size() > 1 else ""
        return f"{cause(inner)}{where}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _corruption(directory: Path) -> str | None:
    """`store.corruption` of this rank's share of the files."""
    if not dist.is_initialized():
        return store.corruption(directory)
    return store.corruption(directory, dist.get_rank(), dist.get_world_size())


def _raise_alike(problem: str | None) -> None:
    """The first rank's problem, as an error of every rank."""
    problems: list[str | None] = [problem]
    if dist.is_initialized() and dist.get_world_size() > 1:
        problems = [None] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
    if (first := next((text for text in problems if text is not None), None)) is not None:
        raise RunError(first)


def _sizes(reader: FileSystemReader) -> dict[str, tuple[int, ...]]:
    """Shape of every stored tensor, by its key."""
    return {
        key: tuple(getattr(entry, "size", ()))
        for key, entry in reader.read_metadata().state_dict_metadata.items()
    }


def _check_model(
    directory: Path,
    stored: Mapping[str, tuple[int, ...]],
    saved: set[str],
    names: Mapping[str, torch.nn.Parameter],
) -> None:
    """Raises `RunError` unless names and shapes are those of the model."""
    remedy = "give model= as it was when this was saved"
    if saved != set(names):
        different = sorted(saved ^ set(names))
        raise RunError(
            f"{directory}: holds another model: {len(different)} parameters differ, such as "
            f"{different[0]}, which only {'it' if different[0] in saved else 'this model'} has; "
            f"{remedy}"
        )
    for name, parameter in names.items():
        there, here = stored[f"model.{name}"], tuple(parameter.shape)
        if there != here:
            raise RunError(
                f"{directory}: holds another model: {name} is {list(there)} there and "
                f"{list(here)} here; {remedy}"
            )


def _moments_to_fill(
    directory: Path,
    stored: set[str],
    names: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> dict[str, dict[str, torch.Tensor]]:
    """Zeros for the moments that the checkpoint holds. Raises `RunError` if they are others than
    those that the optimizer keeps."""
    kept = moment_names(optimizer)
    kinds: dict[str, set[str]] = {}
    for key in stored:
        if key.startswith("optim."):
            name, _, kind = key.removeprefix("optim.").rpartition(".")
            kinds.setdefault(name, set()).add(kind)
    found = {}
    for name in sorted(kinds):
        moments = kept.get(names[name], ())
        if kinds[name] != set(moments):
            raise RunError(
                f"{directory}: holds moments of another optimizer: {name} has "
                f"{', '.join(sorted(kinds[name]))}, this one keeps "
                f"{', '.join(sorted(moments)) or 'none'}; give optim= as it was when this was "
                "saved, or take the weights alone (init_from)"
            )
        found[name] = {kind: empty_moment(kind, names[name]) for kind in moments}
    return found
