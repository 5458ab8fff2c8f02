"""Weights of a Hugging Face directory into a sharded model, one block after the other.

A rank never holds more than its share and one decoder block: names and shapes come from a model on
the meta device, and each block is read into a second such model, cut into shards and dropped. The
reading is that of `transformers`, so that renamed weights and stacks of experts, which lie in files
one by one, come out as `from_pretrained` gives them.
"""

import ctypes
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from curriculum.engine import lora
from curriculum.errors import RunError

META = torch.device("meta")


def empty_lm(config: PretrainedConfig, directory: Path | None = None) -> PreTrainedModel:
    """A float32 model on the meta device, with the generation settings that a directory holds."""
    with META:
        lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if directory is not None:
        lm.name_or_path = str(directory)
        if (directory / "generation_config.json").is_file():
            lm.generation_config = GenerationConfig.from_pretrained(directory)
    return lm


def is_empty(lm: PreTrainedModel) -> bool:
    return lm.get_input_embeddings().weight.is_meta


def holds_all_weights(lm: PreTrainedModel, directory: Path) -> bool:
    """Whether the safetensors files of a directory give every weight of a model on meta.

    Reads no weights. False sends a directory to `from_pretrained`, which says what it lacks.
    """
    if not _files(directory):
        return False
    skeleton = empty_lm(lm.config)
    with _opened(directory) as slices:
        shapes = {name: torch.empty(part.get_shape(), device=META) for name, part in slices.items()}
    missing, wrong = _read_into(skeleton, shapes, "meta")
    return not wrong and not missing - set(skeleton.all_tied_weights_keys)


def fill(lm: PreTrainedModel, directory: Path) -> None:
    """Read the weights of a directory into a materialised, sharded model, in place.

    Every rank calls this. Raises `RunError` if a weight of the model was not in the files.
    """
    targets = lora.base_names(dict(lm.state_dict(keep_vars=True)))
    tied = set(lm.all_tied_weights_keys)
    skeleton = empty_lm(lm.config)
    wanted = targets.keys() & skeleton.state_dict().keys() - tied
    with _opened(directory) as slices, torch.no_grad():
        for names in _blocks(slices):
            _read_into(skeleton, {name: slices[name] for name in names}, "cpu")
            for name, tensor in list(skeleton.state_dict(keep_vars=True).items()):
                if tensor.is_meta:
                    continue
                if name in wanted:
                    put(targets[name], tensor.detach())
                    wanted.discard(name)
                _drop(skeleton, name)
            _give_back_memory()
    if wanted:
        raise RunError(
            f"{directory}: {len(wanted)} weights of the model were not found in its files, such "
            f"as {min(wanted)}"
        )


def put(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a whole tensor, which every rank holds, into a tensor that may be sharded."""
    if isinstance(target, DTensor):
        whole = value.to(target.device, target.dtype)
        value = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
    target.data.copy_(value)


def restore_buffers(lm: PreTrainedModel) -> None:
    """Compute what no file and no checkpoint holds (rotary frequencies, scales) after meta.

    `initialize_weights` skips tensors marked as initialised; without the marks it would draw the
    weights anew. Buffers that a directory holds were read; of a checkpoint all start anew.
    """
    stored = lm.state_dict(keep_vars=True) if lm.name_or_path else dict(lm.named_parameters())
    for tensor in stored.values():
        tensor._is_hf_initialized = True
    lm.initialize_weights()


def _read_into(
    skeleton: PreTrainedModel, tensors: Mapping[str, Any], device: str
) -> tuple[set[str], set[Any]]:
    """Let `transformers` convert and set tensors; names still missing, and ones of wrong shape."""
    settings = LoadStateDictConfig(
        device_map={"": device},
        dtype=torch.float32,
        weight_mapping=get_model_conversion_mapping(skeleton),
    )
    transformers_logging.disable_progress_bar()
    info, _ = convert_and_load_state_dict_in_model(skeleton, dict(tensors), settings)
    return set(info.missing_keys), set(info.mismatched_keys) | set(info.conversion_errors)


def _drop(model: PreTrainedModel, name: str) -> None:
    """Put a tensor of a model back on the meta device."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    tensor = getattr(module, leaf)
    empty = torch.empty_like(tensor, device=META)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    setattr(
        module, leaf, torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    )


def _blocks(names: Mapping[str, Any]) -> Iterator[list[str]]:
    """Names that are read together: those of a decoder block, and every other one alone."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        numbered = re.match(r"(.*?\.\d+)\.", name)
        blocks.setdefault(numbered[1] if numbered else name, []).append(name)
    yield from blocks.values()


def _give_back_memory() -> None:
    """glibc keeps what is freed in small pieces: without this, every block of experts."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


@contextmanager
def _opened(directory: Path) -> Iterator[dict[str, Any]]:
    """A slice of every stored tensor by name; nothing is read before it is indexed."""
    with ExitStack() as stack:
        slices: dict[str, Any] = {}
        for path in _files(directory):
            file = stack.enter_context(safe_open(path, framework="pt"))
            names = file.keys()
            slices.update({name: file.get_slice(name) for name in names})
        yield slices
