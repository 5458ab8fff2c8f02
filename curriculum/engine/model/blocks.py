"""The repeated blocks of a model, and whether their activations are kept or computed again."""

from collections.abc import Sequence
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from curriculum.engine import attention
from curriculum.errors import RunError, UserError


def decoder_layers(lm: PreTrainedModel) -> list[torch.nn.Module]:
    """The repeated blocks: of the base model's module lists the one with most weights."""
    lists = [m for m in lm.base_model.modules() if isinstance(m, torch.nn.ModuleList)]
    if not lists:
        raise RunError(f"{type(lm).__name__}: no list of decoder layers was found to shard")
    return list(max(lists, key=_weights))


def _weights(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def recompute(lm: PreTrainedModel, layers: Sequence[torch.nn.Module], which: str) -> None:
    """Drop the activations of layers in the forward and compute them again in the backward.

    `full`: of every layer. `selective`: of every second one, which keeps half of the activations
    for half of the extra work. Non-reentrant: a reentrant one would not see gradients of keywords.
    """
    if which == "none":
        return
    for layer in layers[:: 1 if which == "full" else 2]:
        if not isinstance(layer, GradientCheckpointingLayer):
            raise UserError(
                f"engine.activation_checkpointing={which}: {type(lm).__name__} does not support "
                "it; give none"
            )
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


def compile_blocks(layers: Sequence[torch.nn.Module]) -> None:
    """`torch.compile` for every block, whatever the number of tokens.

    Attention stays outside: it is laid out by the lengths of the examples, which change from step
    to step, and would be compiled for each of them anew.
    """
    AttentionInterface.register(attention.NAME, torch.compiler.disable(attention.per_example))
    for layer in layers:
        layer.compile(dynamic=True)
