"""Names and shapes against `transformers` models on the meta device; headers against files."""

import json
import struct

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from curriculum.compose import compose
from curriculum.config import Lora
from curriculum.plan.decoder import FAMILIES, Unknown, decoder
from curriculum.plan.parameters import (
    Tensor,
    adapters,
    grouped,
    is_hidden_matrix,
    of_decoder,
    of_directory,
    stored_tensors,
)

SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "vocab_size": 96,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 16}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CASES = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": HEADS,
    "qwen2": {},
    "qwen3": HEADS,
    "qwen3 tied": {**HEADS, "tie_word_embeddings": True},
    "gemma": HEADS,
    "gemma2": HEADS,
    "gemma3_text": HEADS,
    "smollm3": {},
    "phi3": {},
    "granite": {"attention_bias": True},
    "olmo2": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [0]},
    "qwen3_moe": {**EXPERTS, "decoder_sparse_step": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "jamba": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
}


def built(config):
    config = dict(config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config)
        )


def shapes(model):
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def counted(tensors):
    return {tensor.name: tensor.shape for tensor in tensors}


def test_every_family_has_a_case():
    assert {name.split()[0] for name in CASES} == set(FAMILIES)


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_of_a_family(case):
    config = {"model_type": case.split()[0], **SMALL, **CASES[case]}
    model = built(config)
    weights = of_decoder(decoder(config))
    assert counted(weights.every) == shapes(model)
    assert weights.size == sum(p.numel() for p in model.parameters())
    blocks = [shapes(layer) for layer in model.base_model.layers]
    assert [sorted(t.size for t in block) for block in weights.blocks] == [
        sorted(torch.Size(shape).numel() for shape in block.values()) for block in blocks
    ]


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_a_configuration_may_leave_out(kind):
    # hidden size and heads are no family's own, so that defaults that depend on them show
    full = AutoConfig.for_model(kind, hidden_size=96, num_attention_heads=6, num_hidden_layers=2)
    given = {
        key: value
        for key, value in full.to_dict().items()
        if key not in ("num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias")
    }
    short, whole = decoder(given), decoder(full.to_dict())
    assert (short.kv_heads, short.head_dim, short.tied) == (
        whole.kv_heads,
        whole.head_dim,
        whole.tied,
    )
    assert short.qkv_bias == whole.qkv_bias and short.softcap == whole.softcap
    given.pop("sliding_window", None)
    assert [layer.window for layer in decoder(given).layers] == [
        layer.window for layer in whole.layers
    ]


@pytest.mark.parametrize("card", ["demo", "retriever_300m_moe", "retriever_300m_moe_hybrid"])
def test_cards_state_what_their_configuration_gives(card):
    model = compose(["+plan=corrective", f"model={card}"]).model
    weights = of_decoder(decoder(model.config))
    assert weights.size == model.parameters.total
    assert counted(weights.every) == shapes(built(model.config))


def test_an_unknown_family_is_not_guessed():
    with pytest.raises(Unknown, match=r"model_type=mamba2: not among .*llama"):
        decoder({"model_type": "mamba2", **SMALL})
    with pytest.raises(Unknown, match="gives no intermediate_size"):
        decoder({"model_type": "llama", **SMALL, "intermediate_size": None})


def test_hidden_matrices_are_those_that_muon_gets():
    from curriculum.engine.model import TrainModel
    from curriculum.engine.optim.build import hidden_matrices

    for case in ("qwen3", "qwen2_moe", "jamba"):
        config = {"model_type": case, **SMALL, **CASES[case]}
        weights = of_decoder(decoder(config))
        found = {t.name for block in weights.blocks for t in block if is_hidden_matrix(t)}
        assert {f"lm.{name}" for name in found} == hidden_matrices(TrainModel(built(config), 8))


@pytest.mark.parametrize("case", ["llama", "qwen2_moe", "jamba"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_adapters_are_those_that_are_trained(case, targets):
    from curriculum.engine.lora import add_adapters

    settings = Lora(r=4, alpha=8, dropout=0.0, targets=targets)
    config = {"model_type": case, **SMALL, **CASES[case]}
    model = built(config)
    add_adapters(model, settings, 0)
    trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    assert counted(adapters(of_decoder(decoder(config)), settings).every) == trained


def write(file, tensors):
    header = {name: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]} for name, s in tensors}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize("case", ["qwen3 tied", "qwen3_moe", "mixtral"])
def test_a_saved_directory_gives_the_model(case, tmp_path):
    """Files hold experts one by one, and several files an index."""
    config = {"model_type": case.split()[0], **SMALL, **CASES[case]}
    kind = config["model_type"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **CASES[case]))
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    found = of_directory(tmp_path, tied="tied" in case)
    assert found.size == sum(p.numel() for p in model.parameters())
    # a rank's share follows from the shapes: experts lie in stacks
    layers = [list(layer.parameters()) for layer in model.base_model.layers]
    for block, layer in zip(found.blocks, layers, strict=True):
        share = sum(-(-len(p) // 4) * p[0].numel() for p in layer)
        assert sum(tensor.share(4) for tensor in block) == share


def test_other_files_beside_an_index_do_not_count(tmp_path):
    write(tmp_path / "model-1.safetensors", [("model.layers.0.a.weight", [3, 4])])
    write(tmp_path / "consolidated.safetensors", [("layers.0.a.weight", [3, 4])])
    assert len(list(stored_tensors(tmp_path))) == 2
    index = {"weight_map": {"model.layers.0.a.weight": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert list(stored_tensors(tmp_path)) == [Tensor("model.layers.0.a.weight", (3, 4))]


def test_a_tied_head_in_a_file_counts_once(tmp_path):
    names = ["model.embed_tokens.weight", "lm_head.weight"]
    write(tmp_path / "model.safetensors", [(name, [5, 2]) for name in names])
    assert of_directory(tmp_path, tied=True).size == 10
    assert of_directory(tmp_path, tied=False).size == 20


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs", struct.pack("<Q", 3) + b"{x}"]
)
def test_files_without_a_header_hold_nothing(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert of_directory(tmp_path, tied=False) is None


def test_blocks_are_the_list_with_most_weights():
    tensors = [
        Tensor("model.embed.weight", (7, 2)),
        Tensor("model.extra.0.weight", (2, 2)),
        Tensor("model.layers.1.mlp.experts.3.weight", (4, 4)),
        Tensor("model.layers.0.mlp.weight", (4, 5)),
    ]
    found = grouped(tensors)
    assert found.blocks == ((tensors[3],), (tensors[2],))
    assert set(found.root) == {tensors[0], tensors[1]}


def test_the_fullest_rank_holds_rows_rounded_up():
    pieces = torch.empty(15, 6).chunk(4)
    assert Tensor("w", (15, 6)).share(4) == pieces[0].numel()
    assert Tensor("w", (3,)).share(64) == 1
