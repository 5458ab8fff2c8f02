"""The tensors of a model by name and shape, without building it and without reading a weight.

Of a directory they come from the headers of its safetensors files, else from the configuration, by
the families of `plan.decoder`. Names and shapes are those of the model that is trained: experts are
stacks of matrices, also where a file holds them one by one.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

from curriculum.config import Lora
from curriculum.plan.decoder import Decoder, Layer, Mamba


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    def share(self, shards: int) -> int:
        """Elements of the fullest rank: rows are dealt in equal parts, rounded up (`torch.chunk`).

        Times `shards` it is the size of the gathered tensor, which FSDP2 pads.
        """
        return ceil(self.shape[0] / shards) * prod(self.shape[1:]) if self.shape else 1


@dataclass(frozen=True)
class Weights:
    """Tensors by what is gathered together: each decoder block, and the rest with the root."""

    blocks: tuple[tuple[Tensor, ...], ...]
    root: tuple[Tensor, ...]

    @property
    def every(self) -> tuple[Tensor, ...]:
        return (*(tensor for block in self.blocks for tensor in block), *self.root)

    @property
    def size(self) -> int:
        """Elements, each tied tensor once."""
        return sum(tensor.size for tensor in self.every)


def grouped(tensors: Iterable[Tensor]) -> Weights:
    """Blocks are told by the first number in a name; the list with most weights has them."""
    lists: dict[str, dict[int, list[Tensor]]] = {}
    root = []
    for tensor in tensors:
        numbered = re.match(r"(.*?)\.(\d+)\.", tensor.name)
        if numbered is None:
            root.append(tensor)
        else:
            blocks = lists.setdefault(numbered[1], {})
            blocks.setdefault(int(numbered[2]), []).append(tensor)
    best = max(lists, key=lambda name: _size(lists[name]), default=None)
    for name, blocks in lists.items():
        if name != best:
            root += [tensor for block in blocks.values() for tensor in block]
    found = lists[best] if best is not None else {}
    return Weights(tuple(tuple(found[number]) for number in sorted(found)), tuple(root))


def _size(blocks: Mapping[int, list[Tensor]]) -> int:
    return sum(tensor.size for block in blocks.values() for tensor in block)


def is_embedding(name: str) -> bool:
    """Input embedding or output head, by the names that they have in `transformers`."""
    return name.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight"))


def stored_tensors(directory: Path) -> Iterator[Tensor]:
    """Every tensor in the safetensors files of a directory; nothing if a header cannot be read.

    Where there is an index, the files that it names, each once; else all.
    """
    for file in _files(directory):
        header = _header(file)
        if header is None:
            return
        for name, tensor in header.items():
            if name != "__metadata__":
                yield Tensor(name, tuple(tensor["shape"]))


def _files(directory: Path) -> list[Path]:
    index = _json(directory / "model.safetensors.index.json")
    if index is not None and isinstance(index.get("weight_map"), dict):
        return [directory / name for name in sorted(set(index["weight_map"].values()))]
    return sorted(directory.glob("*.safetensors"))


def _header(file: Path) -> dict[str, Any] | None:
    """8 bytes of length, then JSON (https://huggingface.co/docs/safetensors, "Format")."""
    if not file.is_file():
        return None
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= file.stat().st_size - 8:
            return None
        text = stream.read(length)
    try:
        return json.loads(text)
    except ValueError:
        return None


def of_directory(directory: Path, tied: bool) -> Weights | None:
    """The weights that lie in a directory as the model has them; None where there are none.

    `tied`: the head is the embedding, whether or not a file holds it again.
    """
    single: list[Tensor] = []
    experts: dict[str, list[Tensor]] = {}
    for tensor in stored_tensors(directory):
        if tied and tensor.name.endswith("lm_head.weight"):
            continue
        one = re.fullmatch(r"(.*\.experts)\.\d+\.(.*?)(\.weight)?", tensor.name)
        if one is None:
            single.append(tensor)
        else:
            experts.setdefault(f"{one[1]}.{one[2]}", []).append(tensor)
    for name, each in experts.items():
        single.append(Tensor(name, (len(each), *each[0].shape)))
    return grouped(single) if single else None


def of_decoder(model: Decoder) -> Weights:
    """The weights of a decoder of a known family, under the names that `transformers` gives."""
    hidden = model.hidden
    root = [
        Tensor("model.embed_tokens.weight", (model.vocabulary, hidden)),
        Tensor(f"model.{model.family.final_norm}.weight", (hidden,)),
    ]
    if not model.tied:
        root.append(Tensor("lm_head.weight", (model.vocabulary, hidden)))
    blocks = tuple(
        tuple(
            Tensor(f"model.layers.{number}.{name}", shape) for name, shape in _block(model, layer)
        )
        for number, layer in enumerate(model.layers)
    )
    return Weights(blocks, tuple(root))


Named = tuple[str, tuple[int, ...]]


def _block(model: Decoder, layer: Layer) -> Iterator[Named]:
    family = model.family
    for norm in (*family.norms, *family.post_norms):
        yield f"{norm}.weight", (model.hidden,)
    if layer.mamba is not None:
        yield from _mamba(layer.mamba, model.hidden)
    else:
        yield from _attention(model)
    mlp, hidden, width = family.mlp, model.hidden, layer.width
    if not layer.experts:
        yield from _mlp(mlp, hidden, width, model.mlp_bias, family.fused)
        return
    yield f"{mlp}.{family.router}.weight", (layer.experts, hidden)
    yield f"{mlp}.experts.gate_up_proj", (layer.experts, 2 * width, hidden)
    yield f"{mlp}.experts.down_proj", (layer.experts, hidden, width)
    if layer.shared:
        yield from _mlp(f"{mlp}.shared_expert", hidden, layer.shared)
        yield f"{mlp}.shared_expert_gate.weight", (1, hidden)


def _attention(model: Decoder) -> Iterator[Named]:
    hidden, queries, keys = model.hidden, model.queries, model.keys
    if model.family.fused:
        yield from _linear("self_attn.qkv_proj", hidden, queries + 2 * keys, model.qkv_bias)
    else:
        yield from _linear("self_attn.q_proj", hidden, queries, model.qkv_bias)
        yield from _linear("self_attn.k_proj", hidden, keys, model.qkv_bias)
        yield from _linear("self_attn.v_proj", hidden, keys, model.qkv_bias)
    yield from _linear("self_attn.o_proj", queries, hidden, model.o_bias)
    match model.family.qk_norm:
        case "head":
            yield "self_attn.q_norm.weight", (model.head_dim,)
            yield "self_attn.k_norm.weight", (model.head_dim,)
        case "all":
            yield "self_attn.q_norm.weight", (queries,)
            yield "self_attn.k_norm.weight", (keys,)


def _mlp(
    place: str, hidden: int, width: int, bias: bool = False, fused: bool = False
) -> Iterator[Named]:
    if fused:
        yield from _linear(f"{place}.gate_up_proj", hidden, 2 * width, bias)
    else:
        yield from _linear(f"{place}.gate_proj", hidden, width, bias)
        yield from _linear(f"{place}.up_proj", hidden, width, bias)
    yield from _linear(f"{place}.down_proj", width, hidden, bias)


def _mamba(mixer: Mamba, hidden: int) -> Iterator[Named]:
    inner, state = mixer.inner, mixer.state
    yield "mamba.A_log", (inner, state)
    yield "mamba.D", (inner,)
    yield "mamba.conv1d.weight", (inner, 1, mixer.kernel)
    if mixer.conv_bias:
        yield "mamba.conv1d.bias", (inner,)
    yield from _linear("mamba.in_proj", hidden, 2 * inner, mixer.proj_bias)
    yield from _linear("mamba.x_proj", inner, mixer.rank + 2 * state, False)
    yield from _linear("mamba.dt_proj", mixer.rank, inner, True)
    yield from _linear("mamba.out_proj", inner, hidden, mixer.proj_bias)
    yield "mamba.dt_layernorm.weight", (mixer.rank,)
    yield "mamba.b_layernorm.weight", (state,)
    yield "mamba.c_layernorm.weight", (state,)


def _linear(name: str, columns: int, rows: int, bias: bool) -> Iterator[Named]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def is_hidden_matrix(tensor: Tensor) -> bool:
    """Of the tensors of a block: a matrix that Muon moves (`engine.optim.build`)."""
    matrix = len(tensor.shape) == 2 and tensor.name.endswith("weight")
    return matrix or (
        len(tensor.shape) == 3 and not tensor.name.endswith(("bias", "conv1d.weight"))
    )


def adapters(weights: Weights, lora: Lora) -> Weights:
    """The trained matrices of low-rank adapters, by block: A `[r, in]` and B `[out, r]`.

    Routers are no linear layers in `transformers`, and stacks of experts take no adapters.
    """
    blocks = []
    for block in weights.blocks:
        pairs: list[Tensor] = []
        for tensor in block:
            module = tensor.name.removesuffix(".weight")
            if module == tensor.name or len(tensor.shape) != 2 or not _adapted(module, lora):
                continue
            rows, columns = tensor.shape
            pairs.append(Tensor(f"{module}.lora_A.default.weight", (lora.r, columns)))
            pairs.append(Tensor(f"{module}.lora_B.default.weight", (rows, lora.r)))
        blocks.append(tuple(pairs))
    return Weights(tuple(blocks), ())


def _adapted(module: str, lora: Lora) -> bool:
    if lora.targets == "all-linear":
        return not module.endswith((".mlp.gate", ".router"))
    named = [lora.targets] if isinstance(lora.targets, str) else lora.targets
    return any(module == name or module.endswith(f".{name}") for name in named)


def saved_config(directory: Path) -> dict[str, Any] | None:
    """What `config.json` of a directory says; None without one that can be read."""
    return _json(directory / "config.json")


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
