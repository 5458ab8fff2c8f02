"""Which models may be packed, and what is refused before training."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from curriculum.config import Model, Phase, PhaseData, Retrieval
from curriculum.engine import attention
from curriculum.engine.model import TrainModel, build_lm, check_isolation, check_vocabulary
from curriculum.errors import RunError, UserError
from curriculum.objectives import build

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def model(model_type: str, **more: object) -> TrainModel:
    attention.register()
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **more})
    return TrainModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), 16)


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("llama", {}),
        ("qwen3", {"head_dim": 8}),
        ("gemma2", {"head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 2.0}),
        ("granite", {"logits_scaling": 4.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    ],
)
def test_families_that_are_exact_when_packed(model_type: str, more: dict[str, object]) -> None:
    subject = model(model_type, **more)
    check_isolation(subject)
    assert subject.isolates


def test_a_leak_between_examples_falls_back_to_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attention that sees the whole row is found out, and one example a row is used."""
    real = attention.per_example

    def leaking(module, query, key, value, mask, seq_lens=None, **more):  # type: ignore[no-untyped-def]
        return real(module, query, key, value, mask, seq_lens=[sum(seq_lens)], **more)

    monkeypatch.setattr(attention, "per_example", leaking)
    subject = model("llama")
    check_isolation(subject)
    assert not subject.isolates


def test_a_head_that_is_not_reproduced_is_refused() -> None:
    subject = model("cohere", logit_scale=0.25)
    subject.transform = type(subject.transform)()
    with pytest.raises(RunError, match="do not give the logits"):
        check_isolation(subject)


def test_a_tokenizer_larger_than_the_embedding_is_refused() -> None:
    with pytest.raises(UserError, match=r"99 tokens.*97 rows"):
        check_vocabulary(model("llama").lm, 99)
    check_vocabulary(model("llama").lm, 90)


def test_a_model_without_path_or_config_is_refused() -> None:
    empty = Model("hf", None, None, None, None, None)
    with pytest.raises(UserError, match=r"model\.path"):
        build_lm(empty, 0)


def phase(**more: object) -> Phase:
    values = {
        "objective": "retrieval",
        "task": "retrieval",
        "role": "replay",
        "batch_size": 1,
        "seq_len": 8,
        "data": PhaseData(["x"]),
        "retrieval": Retrieval(0.1, 1),
    }
    return Phase(**{**values, **more})  # type: ignore[arg-type]


def test_a_single_pair_has_nothing_to_learn_from() -> None:
    with pytest.raises(UserError, match="batch_size 1"):
        build("p", phase())
    build("p", phase(batch_size=2))


def test_objectives_by_import_path() -> None:
    target = {"_target_": "curriculum.objectives.causal.Causal"}
    assert type(build("p", phase(objective=target))).__name__ == "Causal"
    for wrong in ("nowhere.Thing", "curriculum.objectives.causal.Nothing", "plain"):
        with pytest.raises(UserError, match=r"plan\.phases\.p\.objective\._target_"):
            build("p", phase(objective={"_target_": wrong}))
    with pytest.raises(UserError, match="unknown objective"):
        build("p", phase(objective="generativ"))
