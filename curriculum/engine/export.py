"""Weights as a Hugging Face directory: what `from_pretrained` and other tools read."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers.utils import logging as transformers_logging

from curriculum.engine import embedding_head, lora
from curriculum.engine.distributed import World
from curriculum.engine.model import TrainModel
from curriculum.files import sync_directory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def export(
    model: TrainModel,
    tokenizer: "PreTrainedTokenizerFast",
    directory: Path,
    world: World,
    *,
    adapter: bool = True,
) -> None:
    """Write weights in float32, configuration, tokenizer and the chat template that was used.

    Adapters are merged into the weights, and lie by themselves in `adapter/`, as `peft` reads them,
    unless `adapter` is false: after a phase of kind merge their base is no model that a user has.
    An embedding head lies in `2_Dense/`, as `sentence-transformers` reads it.
    Every rank calls this; rank 0 writes under a temporary name, then renames.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if world.is_main:
        weights = {name.removeprefix("lm."): tensor for name, tensor in state.items()}
        temporary = directory.with_name(f".{directory.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        transformers_logging.disable_progress_bar()
        if lora.has_adapters(model.lm):
            if adapter:
                lora.save_adapters(model.lm, weights, temporary / "adapter")
            weights = lora.merged(model.lm, weights)
        head = weights.pop(f"{embedding_head.NAME}.weight", None)
        model.lm.save_pretrained(temporary, state_dict=weights)
        if head is not None:
            embedding_head.save(head, temporary)
        tokenizer.save_pretrained(str(temporary))
        shutil.rmtree(directory, ignore_errors=True)
        temporary.rename(directory)
        sync_directory(directory.parent)
    world.barrier()
