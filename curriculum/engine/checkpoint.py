"""Sharded tensors by parameter name, into and out of a checkpoint directory (see `store`).

`torch.distributed.checkpoint` with plain names instead of `get/set_state_dict`: those take a step
on an empty optimizer, and drop the moments of parameters that had no gradient yet.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from curriculum import store
from curriculum.engine import lora
from curriculum.engine.distributed import World
from curriculum.engine.optim import empty_moment, moment_names
from curriculum.errors import RunError


def save(
    directory: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: Mapping[str, Any],
    world: World,
) -> None:
    """Write a checkpoint under a temporary name, then rename it. Every rank calls this."""
    temporary = directory.with_name(f".{directory.name}.tmp")
    if world.is_main:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    world.barrier()
    names = dict(model.named_parameters())
    state = {
        "model": {name: p.detach() for name, p in names.items()},
        "optim": {
            name: dict(optimizer.state[p]) for name, p in names.items() if optimizer.state[p]
        },
    }
    dcp.save(state, storage_writer=FileSystemWriter(temporary / "state"))
    if world.is_main:
        store.commit(temporary, directory, meta)
    world.barrier()


def load(directory: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Read weights, and moments if an optimizer is given, into sharded tensors in place.

    The checkpoint says which parameters have moments; the others keep none. Raises `RunError`
    if the checkpoint is of another model or cannot be read.
    """
    names = dict(model.named_parameters())
    try:
        reader = FileSystemReader(directory / "state")
        stored = reader.read_metadata().state_dict_metadata
        saved = {key.removeprefix("model.") for key in stored if key.startswith("model.")}
        if optimizer is None and (plain := lora.base_names(names)).keys() == saved:
            names = plain  # weights without adapters: those of the model keep their own
        if saved != set(names):
            different = sorted(saved ^ set(names))
            raise RunError(
                f"{directory}: holds another model: {len(different)} parameters differ, "
                f"such as {different[0]}; give model= as it was when this was saved"
            )
        state: dict[str, Any] = {"model": {name: p.detach() for name, p in names.items()}}
        if optimizer is not None:
            state["optim"] = _moments_to_fill(directory, set(stored), names, optimizer)
        dcp.load(state, storage_reader=reader)
    # CheckpointException derives from BaseException
    except (OSError, KeyError, ValueError, dcp.api.CheckpointException) as error:
        cause = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        raise RunError(f"{directory}: cannot be read as a checkpoint ({cause[:200]})") from None
    if optimizer is not None:
        optimizer.state.clear()
        for name, moments in state["optim"].items():
            optimizer.state[names[name]] = moments


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
