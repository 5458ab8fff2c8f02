"""Sharding: which weights are gathered together, and how their gradients are summed."""

from pathlib import Path

import torch
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from transformers import PreTrainedModel

from curriculum import config as schema
from curriculum.engine import embedding_head, lora
from curriculum.engine.distributed import World
from curriculum.engine.model.blocks import compile_blocks, decoder_layers, recompute
from curriculum.engine.model.isolation import check_isolation
from curriculum.engine.model.modes import sharded_modules
from curriculum.engine.model.pretrained import fill, is_empty, restore_buffers
from curriculum.engine.model.train_model import TrainModel


def wrap(lm: PreTrainedModel, engine: schema.Engine, world: World) -> TrainModel:
    """Check that packing is exact for this model, then shard it; fill it if it is on meta.

    Groups: each decoder layer, then the root with embedding, final norm and head, which stays
    gathered between its forward and its backward. Gradients are summed, not averaged, over ranks;
    the step divides once. Both settings have to be made on every module: they do not recurse.
    """
    empty = is_empty(lm)
    if not empty:
        lm = lm.to(world.device)
    model = TrainModel(lm, engine.head_chunk_rows)
    check_isolation(model, world.device)
    layers = decoder_layers(lm)
    recompute(lm, layers, engine.activation_checkpointing)
    if engine.compile:
        compile_blocks(layers)
    compute = getattr(torch, engine.dtype)
    precision = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    layer_precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=world.mesh, mp_policy=layer_precision, reshard_after_forward=True)
    fully_shard(model, mesh=world.mesh, mp_policy=precision, reshard_after_forward=False)
    register_fsdp_forward_method(model, "generate")
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    if empty:
        _materialise(model, world)
    return model


def _materialise(model: TrainModel, world: World) -> None:
    """Memory for this rank's share, then what a directory, a config or a seed says about it."""
    lm = model.lm
    model.to_empty(device=world.device)
    lm.tie_weights()
    if lm.name_or_path:
        fill(lm, Path(lm.name_or_path))
    lora.reset_adapters(lm)
    embedding_head.fill(lm, Path(lm.name_or_path) if lm.name_or_path else None)
    restore_buffers(lm)
