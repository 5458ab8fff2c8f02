"""Low-rank adapters (Hu et al., 2021, "LoRA") by `peft`, inside the model that is sharded.

`peft` puts its layers into the model in place, so that the engine sees an ordinary causal LM whose
base weights are frozen. A weight `X.weight` becomes `X.base_layer.weight` with
`X.lora_A.default.weight` `[r, in]` and `X.lora_B.default.weight` `[out, r]` beside it.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from curriculum import config as schema
from curriculum.errors import UserError

ADAPTER = "default"
_BASE = ".base_layer."
_PARTS = (".lora_A.", ".lora_B.")

T = TypeVar("T")


def add_adapters(lm: PreTrainedModel, lora: schema.Lora, seed: int) -> None:
    """Freeze a model and put fresh adapters in, which change nothing yet (B is zero).

    Raises `UserError` without `peft`, for targets that match nothing, and for embeddings and head:
    the engine takes their weights without calling them.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError("model.lora: needs peft; pip install 'curriculum[lora]'") from None
    settings = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_linear(lm) if lora.targets == "all-linear" else lora.targets,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in lm.modules()),
        task_type="CAUSAL_LM",
    )
    head = lm.get_output_embeddings()
    embedding = lm.get_input_embeddings()
    try:
        inject_adapter_in_model(settings, lm, ADAPTER)
    except ValueError as error:
        cause = str(error).strip().splitlines()[0]
        raise UserError(f"model.lora.targets={lora.targets}: {cause}") from None
    if lm.get_output_embeddings() is not head or lm.get_input_embeddings() is not embedding:
        raise UserError(
            f"model.lora.targets={lora.targets}: embeddings and the output head take no adapters; "
            "leave them out"
        )
    if any(type(module).__name__ == "ParamWrapper" for module in lm.modules()):
        raise UserError(
            f"model.lora.targets={lora.targets}: stacks of experts take no adapters; name linear "
            "layers, such as q_proj"
        )
    lm.adapter_settings = settings
    lm.adapter_seed = seed
    if not embedding.weight.is_meta:
        reset_adapters(lm)


def _linear(lm: PreTrainedModel) -> list[str]:
    """Full names of the linear layers, the head left out. `peft` itself would adapt experts too."""
    head = lm.get_output_embeddings()
    return [
        name
        for name, module in lm.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]


def has_adapters(lm: PreTrainedModel) -> bool:
    return hasattr(lm, "adapter_settings")


def reset_adapters(lm: PreTrainedModel) -> None:
    """Draw A and zero B: the same numbers at any world size, on meta first or not."""
    if not has_adapters(lm):
        return
    generator = torch.Generator().manual_seed(lm.adapter_seed)
    for name, parameter in sorted(lm.named_parameters()):
        if ".lora_A." in name:
            whole = torch.empty(parameter.shape)
            # as peft does it: uniform in +- 1 / sqrt(in)
            torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
        elif ".lora_B." in name:
            whole = torch.zeros(parameter.shape)
        else:
            continue
        parameter.data.copy_(_sharded_as(whole.to(parameter.device), parameter))


def _sharded_as(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that all ranks hold, laid out as another one."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def base_names(named: Mapping[str, T]) -> dict[str, T]:
    """The same things under the names that the model has without adapters; adapters left out."""
    return {
        name.replace(_BASE, "."): thing
        for name, thing in named.items()
        if not any(part in name for part in _PARTS)
    }


def merged(lm: PreTrainedModel, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A whole state with the adapters added to the weights, under plain names."""
    plain = base_names(state)
    for name, module in lm.named_modules():
        a = state.get(f"{name}.lora_A.{ADAPTER}.weight")
        b = state.get(f"{name}.lora_B.{ADAPTER}.weight")
        if a is None or b is None:
            continue
        change = module.scaling[ADAPTER] * (b.double() @ a.double())
        weight = plain[f"{name}.weight"]
        # some families keep their matrices as [in, out]
        change = change.T if module.fan_in_fan_out else change
        plain[f"{name}.weight"] = (weight.double() + change).to(weight.dtype)
    return plain


def changes(lm: PreTrainedModel) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """What the adapters add to each base weight, in float64, laid out like it.

    Every rank calls this, and multiplies whole matrices: the same numbers at any world size.
    """
    for module in lm.modules():
        if ADAPTER not in getattr(module, "lora_A", {}):
            continue
        a, b = (_whole(part[ADAPTER].weight) for part in (module.lora_A, module.lora_B))
        change = module.scaling[ADAPTER] * (b.double() @ a.double())
        change = change.T.contiguous() if module.fan_in_fan_out else change
        weight = module.base_layer.weight
        yield weight, _sharded_as(change, weight)


def save_adapters(lm: PreTrainedModel, state: Mapping[str, torch.Tensor], directory: Path) -> None:
    """Write the adapters of a whole state as `PeftModel.from_pretrained` reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": tensor.contiguous()
        for name, tensor in state.items()
        if any(part in name for part in _PARTS)
    }
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = lm.adapter_settings
    settings.base_model_name_or_path = lm.name_or_path or None
    settings.save_pretrained(str(directory))
