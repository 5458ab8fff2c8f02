"""What the sharded model is doing: training, forwards without gradient, or generation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from curriculum.engine.model.train_model import TrainModel


def sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def no_grad_forwards(model: TrainModel, training: bool = False) -> Iterator[None]:
    """The only place for forwards without gradient; in evaluation mode unless `training`.

    Without the reshard on exit the root stays gathered, `parameters()` then gives tensors without
    gradients, and the next clipping misses them. Never `inference_mode`: it poisons the gather
    buffers for later training.
    """
    was_training = model.training
    model.train(training)
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
        reshard(model)


def reshard(model: TrainModel) -> None:
    for module in sharded_modules(model):
        module.reshard()


@contextmanager
def gathered(model: TrainModel) -> Iterator[None]:
    """All weights gathered on every rank, so that ranks may run different numbers of forwards."""
    modules = sharded_modules(model)
    previous = model.lm.config._attn_implementation
    set_attention(model.lm, model.native)
    try:
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        yield
    finally:
        for module in modules:
            # the root, and only the root, stays gathered after its forward
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()
        set_attention(model.lm, previous)


def set_attention(lm: PreTrainedModel, name: str) -> None:
    """Switch the attention implementation; families that refuse `sdpa` get `eager`."""
    try:
        lm.set_attn_implementation(name)
    except ValueError:
        if name != "sdpa":
            raise
        lm.set_attn_implementation("eager")
