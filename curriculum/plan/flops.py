"""Floating point operations of training, from counts alone.

6 operations a parameter and token (2 forward, 4 backward; Kaplan et al., 2020, section 2.1) for
the parameters that are not embedding and are active; the output head the same way, but only on
the rows that carry loss; and attention scores and values, 2 products of 2 operations a pair of
positions and channel, over half of the pairs because attention is causal. Forward-only work is a
third.

Where `conf/model` states no counts they are read from the headers of safetensors files, without
their weights.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from curriculum.config import Model


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
    config = model.config if model.config is not None else _saved_config(model.path)
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
    elif model.path is not None and (tensors := dict(_tensors(Path(model.path)))):
        total = sum(tensors.values())
        embedding = sum(size for name, size in tensors.items() if _is_embedding(name))
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


def _saved_config(path: str | None) -> dict[str, Any] | None:
    file = Path(path) / "config.json" if path is not None else None
    if file is None or not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None


def _tensors(directory: Path) -> Iterator[tuple[str, int]]:
    """Name and number of elements of every stored tensor; nothing if a header cannot be read."""
    for file in sorted(directory.glob("*.safetensors")):
        with file.open("rb") as stream:
            prefix = stream.read(8)
            if len(prefix) < 8:
                return
            length = struct.unpack("<Q", prefix)[0]
            if length > file.stat().st_size:
                return
            header = json.loads(stream.read(length))
        for name, tensor in header.items():
            if name != "__metadata__":
                yield name, prod(tensor["shape"])


def _is_embedding(name: str) -> bool:
    return name.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight"))


def _idle(tensors: Mapping[str, int], config: Mapping[str, Any]) -> int:
    """Parameters of the experts that a token does not visit."""
    experts = config.get("num_experts") or config.get("num_local_experts")
    chosen = config.get("num_experts_per_tok")
    if not experts or not chosen:
        return 0
    stored = sum(size for name, size in tensors.items() if ".experts." in name)
    return stored * (experts - chosen) // experts
