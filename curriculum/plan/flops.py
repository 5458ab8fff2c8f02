"""Floating point operations of training, from counts alone.

6 operations a parameter and token (2 forward, 4 backward; Kaplan et al., 2020, section 2.1) for
the parameters that are not embedding and are active; the output head the same way, but only on
the rows that carry loss; and attention scores and values, 2 products of 2 operations a pair of
positions and channel, over half of the pairs because attention is causal. Forward-only work is a
third.

Where `conf/model` states no counts they are read from the headers of safetensors files, without
their weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curriculum.config import Model
from curriculum.plan.parameters import is_embedding, saved_config, stored_tensors


@dataclass(frozen=True)
class ModelSize:
    """What the formula needs. `active` excludes embedding, output head and unused experts."""

    total: int
    active: int
    hidden: int
    vocabulary: int
    layers: int
    attention: int  # heads x head dimension


def model_size(model: Model) -> ModelSize | None:
    """Sizes of a configured or saved model, None where they are not known without building it."""
    config = model.config
    if config is None and model.path is not None:
        config = saved_config(Path(model.path))
    if config is None:
        return None
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = config.get("head_dim") or hidden // heads
        vocabulary, layers = int(config["vocab_size"]), int(config["num_hidden_layers"])
    except (KeyError, TypeError, ValueError):
        return None
    counts = model.parameters
    if counts is not None:
        total, embedding, used = counts.total, counts.embedding, counts.active or counts.total
    elif model.path is not None and (stored := list(stored_tensors(Path(model.path)))):
        tensors = {tensor.name: tensor.size for tensor in stored}
        total = sum(tensors.values())
        embedding = sum(size for name, size in tensors.items() if is_embedding(name))
        used = total - _idle(tensors, config)
    else:
        return None
    return ModelSize(total, used - embedding, hidden, vocabulary, layers, heads * int(head))


def training_flops(
    size: ModelSize | None, forward_tokens: int, head_rows: int, sequence_length: float
) -> int | None:
    """Operations of forward and backward over `forward_tokens` tokens.

    `head_rows`: positions that reach the output head. `sequence_length`: mean over tokens of the
    length of the example that each stands in; with the longest that may occur the figure is an
    upper bound.
    """
    if size is None:
        return None
    body = 6 * size.active * forward_tokens
    head = 6 * size.hidden * size.vocabulary * head_rows
    attention = round(6 * size.layers * size.attention * forward_tokens * sequence_length)
    return body + head + attention


def forward_flops(
    size: ModelSize | None, forward_tokens: int, head_rows: int, sequence_length: float
) -> int | None:
    """Operations of a forward pass alone: a third of `training_flops`."""
    flops = training_flops(size, forward_tokens, head_rows, sequence_length)
    return None if flops is None else flops // 3


def _idle(tensors: Mapping[str, int], config: Mapping[str, Any]) -> int:
    """Parameters of the experts that a token does not visit."""
    experts = config.get("num_experts") or config.get("num_local_experts")
    chosen = config.get("num_experts_per_tok")
    if not experts or not chosen:
        return 0
    stored = sum(size for name, size in tensors.items() if ".experts." in name)
    return stored * (experts - chosen) // experts
