"""Bytes that the forward of real models keeps for its backward, against the count."""

import pytest
import torch
from test_plan_parameters import CASES, SMALL
from transformers import AutoConfig, AutoModelForCausalLM

from curriculum.engine import attention
from curriculum.engine.model.modes import set_attention
from curriculum.plan.activations import around, kept
from curriculum.plan.decoder import decoder

TOKENS = 48
CONFIGS = {case: {"model_type": case.split()[0], **SMALL, **CASES[case]} for case in CASES}
CONFIGS["mistral, window"] = {**CONFIGS["mistral"], "sliding_window": 16}
CONFIGS["gemma3_text, window"] = {
    **CONFIGS["gemma3_text"],
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def really_kept(config, dtype):
    """Storages that autograd holds after the forward of one example, weights left out."""
    config = dict(config)
    attention.register()
    lm = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), **config), dtype=dtype
    )
    lm.train()
    packs = "mamba_expand" not in config
    set_attention(lm, attention.NAME if packs else "sdpa")
    own = {p.untyped_storage().data_ptr() for p in lm.parameters()}
    held = {}

    def see(tensor):
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(config["vocab_size"], (1, TOKENS))
    lengths = {"position_ids": torch.arange(TOKENS)[None], "seq_lens": [TOKENS]} if packs else {}
    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        out = lm.base_model(input_ids=tokens, use_cache=False, **lengths)
    assert out.last_hidden_state.requires_grad
    return sum(size for place, size in held.items() if place not in own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CONFIGS)
def test_what_a_forward_keeps(case, dtype):
    model = decoder(CONFIGS[case])
    blocks = sum(kept(model, layer, dtype.itemsize, TOKENS) for layer in model.layers)
    counted = TOKENS * (blocks + around(model, dtype.itemsize))
    assert counted == pytest.approx(really_kept(CONFIGS[case], dtype), rel=0.025)
