"""Models on the meta device: what is checked before weights, and which directories need more."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from curriculum.config import Lora, Model
from curriculum.engine import lora
from curriculum.engine.model import build_lm, decoder_layers
from curriculum.engine.model.isolation import shortened
from curriculum.engine.model.pretrained import empty_lm, is_empty
from curriculum.errors import UserError

SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}


def made(model_type: str, layers: int, **more: object) -> PreTrainedModel:
    torch.manual_seed(0)
    options = {**SIZES, "num_hidden_layers": layers, **more}
    config = AutoConfig.for_model(model_type, **options)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def of(model_type: str = "llama", **more: object) -> Model:
    config = {"model_type": model_type, **SIZES, "num_hidden_layers": 2}
    return Model("tiny", None, config, None, None, None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model_type", "more", "kept"),
    [
        ("llama", {}, 1),
        ("gemma3_text", {"head_dim": 8, "sliding_window": 8}, 6),  # the sixth sees everything
        ("qwen3_moe", {"head_dim": 8, "num_experts": 3, "decoder_sparse_step": 3}, 3),
    ],
)
def test_a_shortened_model_holds_a_layer_of_each_kind(
    model_type: str, more: dict[str, object], kept: int
) -> None:
    lm = empty_lm(AutoConfig.for_model(model_type, **SIZES, num_hidden_layers=12, **more))
    short = shortened(lm, vocabulary=50)
    assert len(decoder_layers(short)) == kept
    assert short.get_input_embeddings().weight.shape == (50, 32)
    assert not is_empty(short) and is_empty(lm)
    for whole, part in zip(decoder_layers(lm), decoder_layers(short), strict=False):
        shapes = [{n: p.shape for n, p in layer.named_parameters()} for layer in (whole, part)]
        assert shapes[0] == shapes[1]


def test_a_directory_is_not_read_before_it_is_sharded(tmp_path: Path) -> None:
    made("llama", 2).save_pretrained(tmp_path)
    lm = build_lm(of(), 0, tmp_path)
    assert is_empty(lm)
    assert lm.name_or_path == str(tmp_path)


def test_a_directory_without_head_or_of_another_format_is_read_whole(tmp_path: Path) -> None:
    lm = made("llama", 2, tie_word_embeddings=False)
    lm.model.save_pretrained(tmp_path / "base")
    found = build_lm(of(), 0, tmp_path / "base")
    assert not is_empty(found)
    assert torch.equal(
        found.model.layers[1].mlp.up_proj.weight, lm.model.layers[1].mlp.up_proj.weight
    )
    lm.config.save_pretrained(tmp_path / "bin")
    torch.save(lm.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    found = build_lm(of(), 0, tmp_path / "bin")
    assert torch.equal(found.lm_head.weight, lm.lm_head.weight)


def test_a_weight_of_another_shape_is_not_taken(tmp_path: Path) -> None:
    made("llama", 2).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        text.replace('"intermediate_size": 48', '"intermediate_size": 40')
    )
    with pytest.raises(UserError, match="cannot be built"):
        build_lm(of(), 0, tmp_path)


def test_the_longest_list_of_small_modules_is_not_the_decoder() -> None:
    lm = made("llama", 2)
    lm.model.layers[0].extra = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(9))
    assert decoder_layers(lm) == list(lm.model.layers)


def adapted(targets: str | list[str], model_type: str = "llama") -> Model:
    return of(model_type, lora=Lora(r=2, alpha=4.0, dropout=0.0, targets=targets))


def test_fresh_adapters_change_nothing_and_freeze_the_rest() -> None:
    plain, lm = build_lm(of(), 0).eval(), build_lm(adapted("all-linear"), 0).eval()
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(plain(tokens).logits, lm(tokens).logits)
    trained = {name for name, p in lm.named_parameters() if p.requires_grad}
    # seven matrices a layer, two factors each; the head is none of them
    assert len(trained) == 2 * 7 * 2 and all(".lora_" in name for name in trained)
    assert (
        lora.base_names(dict(lm.named_parameters())).keys() == dict(plain.named_parameters()).keys()
    )


@pytest.mark.parametrize("targets", [["lm_head"], ["embed_tokens"], ["no_such_layer"]])
def test_targets_that_cannot_be_adapted_are_refused(targets: list[str]) -> None:
    with pytest.raises(UserError, match=r"model\.lora\.targets"):
        build_lm(adapted(targets), 0)
