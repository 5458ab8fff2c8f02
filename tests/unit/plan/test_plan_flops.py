"""FLOPs by hand; parameter counts against models built without weights."""

import json
import struct

import pytest
from plan_builders import config, phase, values

from curriculum.compose import compose
from curriculum.config import Model, load
from curriculum.plan.budget import WindowCount, plan_budget
from curriculum.plan.flops import ModelSize, forward_flops, model_size, training_flops

SIZE = ModelSize(total=1100, active=1000, hidden=10, vocabulary=50, layers=2, attention=12)


def test_three_terms():
    # 6*1000*7 + 6*10*50*3 + 6*2*12*7*4
    assert training_flops(SIZE, 7, 3, 4) == 42_000 + 9_000 + 4_032
    assert forward_flops(SIZE, 7, 3, 4) == (42_000 + 9_000 + 4_032) // 3
    assert training_flops(None, 7, 3, 4) is None


def test_attention_is_the_sum_over_causal_pairs():
    # one sequence of n tokens: n*n/2 pairs, 2 products x 2 operations x 3 passes a channel
    n, layers, width = 64, 3, 16
    size = ModelSize(0, 0, 0, 0, layers, width)
    assert training_flops(size, n, 0, n) == 2 * 2 * 3 * layers * width * n * n // 2


def model(**more):
    tree = values({"a": phase()})
    tree["model"].update(
        config={
            "hidden_size": 10,
            "num_attention_heads": 3,
            "head_dim": 4,
            "num_hidden_layers": 2,
            "vocab_size": 50,
        },
        **more,
    )
    return load(tree).model


def test_stated_counts():
    assert model_size(model(parameters={"total": 1100, "embedding": 100})) == SIZE
    sparse = model_size(model(parameters={"total": 1100, "embedding": 100, "active": 400}))
    assert (sparse.total, sparse.active) == (1100, 300)
    assert model_size(model()) is None


def test_only_trained_rows_reach_the_head():
    settings = config({"a": phase(steps=1, batch_size=1, seq_len=7)})
    settings.model = model(parameters={"total": 1100, "embedding": 100})
    bound = plan_budget(settings, {}).phases[0].flops
    known = plan_budget(settings, {"a": WindowCount(1, True, 7, 2)}).phases[0].flops
    assert bound - known == 6 * 10 * 50 * (7 - 2)


def test_retrieval_has_no_head():
    group = phase(
        "replay", "retrieval", "retrieval", 1, 1, 7, retrieval={"temperature": 1.0, "documents": 1}
    )
    settings = config({"a": group})
    settings.model = model(parameters={"total": 1100, "embedding": 100})
    assert plan_budget(settings, {}).phases[0].flops == 6 * 1000 * 14 + 6 * 2 * 12 * 14 * 7


def write_safetensors(file, tensors):
    offset, header = 0, {"__metadata__": {"format": "pt"}}
    for name, shape in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)


def test_counts_from_safetensors_headers(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 4,
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "vocab_size": 5,
                "num_experts": 4,
                "num_experts_per_tok": 1,
            }
        )
    )
    write_safetensors(tmp_path / "model-1.safetensors", {"model.embed_tokens.weight": [5, 4]})
    write_safetensors(
        tmp_path / "model-2.safetensors",
        {"model.layers.0.mlp.experts.down_proj": [4, 2, 4], "lm_head.weight": [5, 4], "norm": [4]},
    )
    saved = Model(
        name="hf",
        path=str(tmp_path),
        config=None,
        tokenizer=None,
        chat_template=None,
        parameters=None,
    )
    # total 20 + 32 + 20 + 4; without embedding and head 36; three of four experts idle: 36 - 24
    assert model_size(saved) == ModelSize(76, 12, 4, 5, 1, 4)
    (tmp_path / "model-2.safetensors").write_bytes(b"\x01")
    assert model_size(saved) is not None, "a broken shard costs the figure, not the dry run"
    (tmp_path / "config.json").unlink()
    assert model_size(saved) is None


def test_stated_counts_are_those_of_the_model():
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    stated = compose(["+plan=corrective", "profile=production"]).model
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(AutoConfig.for_model(**stated.config))
    total = sum(p.numel() for p in built.parameters())
    experts = sum(p.numel() for name, p in built.named_parameters() if ".experts." in name)
    assert stated.parameters.total == total
    assert stated.parameters.embedding == built.get_input_embeddings().weight.numel()
    assert built.config.tie_word_embeddings
    assert stated.parameters.active == total - experts * 13 // 15
    assert 290e6 < total < 310e6
