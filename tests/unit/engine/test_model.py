"""Which models may be packed, and what is refused before training."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from curriculum.config import Model, Phase, PhaseData, Retrieval
from curriculum.engine import attention
from curriculum.engine.batch import text_batch
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


@pytest.mark.parametrize(("model_type", "isolates"), [("phimoe", False), ("mistral", True)])
def test_a_window_that_attention_is_not_told_of_is_found(model_type: str, isolates: bool) -> None:
    """In one family it lies in the mask alone, which packed rows do not have: one example a row."""
    subject = model(model_type, sliding_window=600, num_local_experts=2)
    check_isolation(subject)
    assert subject.isolates == isolates
    assert subject.lm.config.sliding_window == 600


def test_a_base_model_that_gives_no_states_is_refused() -> None:
    subject = model("llama4_text", head_dim=8, num_local_experts=2, intermediate_size_mlp=48)
    with pytest.raises(RunError, match="Llama4ForCausalLM: packed examples do not give"):
        check_isolation(subject)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4}


@pytest.mark.parametrize(
    ("model_type", "rope"),
    [
        ("phi3", LONG),
        ("llama", {"rope_type": "dynamic", "factor": 4.0}),
    ],
)
def test_frequencies_that_depend_on_other_texts_are_refused(
    model_type: str, rope: dict[str, object]
) -> None:
    more: dict[str, object] = {"max_position_embeddings": 16}
    if model_type == "phi3":
        more = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
        more |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    subject = model(model_type, rope_parameters={"rope_theta": 1e4, **rope}, **more).eval()
    check_isolation(subject)
    assert subject.isolates
    rotary, states = subject.lm.base_model.rotary_emb, torch.zeros(1, 1, 32)
    alone = rotary(states, torch.arange(5)[None])[0]
    beside = rotary(states, torch.cat([torch.arange(5), torch.arange(20)])[None])[0]
    assert (alone[0] - beside[0, :5]).abs().max() > 1e-2  # what transformers would do

    def forward(lengths: list[int]) -> None:
        subject(text_batch([[7] * n for n in lengths], torch.device("cpu")), "embed", _sums)

    forward([5, 16, 9])
    with pytest.raises(RunError, match=r"a text of 20 tokens among 2 .* seq_len of at most 16"):
        forward([5, 20])
    if model_type == "phi3":
        forward([20])
    else:  # its frequencies would stay stretched
        with pytest.raises(RunError, match="seq_len of at most 16"):
            forward([20])


def _sums(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return states.sum(), states.sum()


def test_generation_takes_an_attention_that_leaves_nothing_out() -> None:
    """Gemma 2 caps its attention scores, which `sdpa` cannot: a small cap tells them apart."""
    subject = model(
        "gemma2", head_dim=8, query_pre_attn_scalar=1, attn_logit_softcapping=0.5, sliding_window=64
    )
    check_isolation(subject)
    assert subject.isolates and subject.native == "eager"
    dense = model("llama")
    check_isolation(dense)
    assert dense.native == "sdpa"


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
