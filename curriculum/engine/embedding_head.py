"""An optional projection of pooled states to embeddings of another size, beside the LM's weights.

It is a part of the LM, so that FSDP2 shards it with the root, optimizers and checkpoints know it by
name, and phases without retrieval leave it as it is. On disk it is what `sentence-transformers`
calls a Dense module: `2_Dense/config.json` and `2_Dense/model.safetensors`.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from curriculum.errors import UserError

NAME = "embedding_head"
FOLDER = "2_Dense"
_STORED = "linear.weight"
_IDENTITY = "torch.nn.modules.linear.Identity"


def add(lm: PreTrainedModel, size: int, seed: int, directory: Path | None) -> None:
    """Put `[size, hidden]` into an LM, on its device; filled (see there) unless that is meta."""
    embedding = lm.get_input_embeddings().weight
    options = {"device": embedding.device, "dtype": torch.float32}
    lm.add_module(NAME, torch.nn.Linear(lm.config.hidden_size, size, bias=False, **options))
    lm.embedding_head_seed = seed
    if not embedding.is_meta:
        fill(lm, directory)


def stored_size(directory: Path) -> int | None:
    """The size of embeddings of the head that a directory holds; None without one.

    Raises `UserError` for one that is more than a matrix.
    """
    file = directory / FOLDER / "config.json"
    if not file.is_file():
        return None
    settings = json.loads(file.read_text())
    for name, plain in (("bias", False), ("activation_function", _IDENTITY)):
        if settings.get(name) != plain:
            raise UserError(
                f"{file}: {name} is {settings.get(name)!r}; an embedding head here is a matrix "
                f"alone ({name} {plain!r}); remove {FOLDER} to start without it"
            )
    return int(settings["out_features"])


def of(lm: PreTrainedModel) -> torch.nn.Linear | None:
    return getattr(lm, NAME, None)


def project(head: torch.nn.Linear | None, states: torch.Tensor) -> torch.Tensor:
    """Pooled states `[S, hidden]` as float32 `[S, size]`; without a head, as they are.

    Multiplied in float32 whatever the model computes in: one small product a micro-batch.
    """
    states = states.float()
    return states if head is None else states @ head.weight.float().t()


def fill(lm: PreTrainedModel, directory: Path | None) -> None:
    """The weight that a directory holds, else random rows of length about one, alike on all ranks.

    Raises `UserError` if the stored one has another shape.
    """
    if (head := of(lm)) is None:
        return
    if directory is not None and (size := stored_size(directory)) is not None:
        whole = load_file(directory / FOLDER / "model.safetensors")[_STORED].float()
        if whole.shape != head.weight.shape:
            raise UserError(
                f"model.embedding_dim={head.out_features}: {directory / FOLDER} holds "
                f"{list(whole.shape)}, the model wants {list(head.weight.shape)}; give "
                f"model.embedding_dim={size}"
            )
    else:
        generator = torch.Generator().manual_seed(lm.embedding_head_seed)
        whole = torch.randn(head.weight.shape, generator=generator) * head.in_features**-0.5
    target = head.weight
    whole = whole.to(target.device)
    if isinstance(target, DTensor):
        whole = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    target.data.copy_(whole)


def save(weight: torch.Tensor, directory: Path) -> None:
    """Write a whole weight `[size, hidden]` as `fill` and `sentence-transformers` read it."""
    size, hidden = weight.shape
    place = directory / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    settings = {
        "in_features": hidden,
        "out_features": size,
        "bias": False,
        "activation_function": _IDENTITY,
    }
    (place / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    save_file({_STORED: weight.contiguous()}, place / "model.safetensors", {"format": "pt"})
