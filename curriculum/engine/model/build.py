"""A causal LM from a config or from a directory, before it is sharded."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from curriculum import config as schema
from curriculum.engine import attention, embedding_head, lora
from curriculum.engine.model.pretrained import empty_lm, holds_all_weights
from curriculum.engine.router import set_router_loss
from curriculum.errors import UserError


def build_lm(
    model: schema.Model, seed: int, weights: Path | None = None, empty: bool = False
) -> PreTrainedModel:
    """A causal LM with float32 master weights: those of a Hugging Face directory, or random ones.

    Without `weights` the architecture is `model.config`, or that of `model.path`; every rank draws
    the same numbers, because `fully_shard` keeps each rank's slice of its own.

    The weights of a directory of safetensors are not read here: the model comes back on the meta
    device, knows the directory as `name_or_path`, and `wrap` fills each rank's share. Files that do
    not hold every weight (a base model without head, say) or of other formats are read whole, by
    `from_pretrained`. With `empty` the model comes back on the meta device without a directory:
    a checkpoint will fill it.
    """
    attention.register()
    torch.manual_seed(seed)
    try:
        if weights is not None:
            lm = _of_directory(weights)
        elif empty:
            lm = empty_lm(_architecture(model))
            lm.name_or_path = ""
        else:
            lm = AutoModelForCausalLM.from_config(_architecture(model), dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        cause = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"model {model.name}: cannot be built: {cause}") from None
    set_router_loss(lm.config, model.router_loss)
    if model.lora is not None:
        lora.add_adapters(lm, model.lora, seed)
    size = None if weights is None else embedding_head.stored_size(weights)
    if model.embedding_dim is not None:
        embedding_head.add(lm, model.embedding_dim, seed, weights)
    elif size is not None:
        raise UserError(
            f"{weights}: holds an embedding head ({embedding_head.FOLDER}), which "
            f"model.embedding_dim=null would leave out; give model.embedding_dim={size}"
        )
    return lm


def _architecture(model: schema.Model) -> PretrainedConfig:
    if model.config is not None:
        options = dict(model.config)
        return AutoConfig.for_model(options.pop("model_type"), **options)
    if model.path is not None:
        return AutoConfig.from_pretrained(model.path)
    raise UserError(f"model={model.name}: give model.path=DIR (a Hugging Face directory)")


def _of_directory(weights: Path) -> PreTrainedModel:
    lm = empty_lm(AutoConfig.from_pretrained(weights), weights)
    if holds_all_weights(lm, weights):
        return lm
    return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)


def check_vocabulary(lm: PreTrainedModel, tokens: int) -> None:
    """Raises `UserError` if the tokenizer has ids that the embedding has no row for."""
    rows = lm.get_input_embeddings().weight.shape[0]
    if tokens > rows:
        raise UserError(
            f"model.tokenizer: has {tokens} tokens, the model's embedding {rows} rows; "
            "give the tokenizer that belongs to the model, or a larger vocab_size"
        )
