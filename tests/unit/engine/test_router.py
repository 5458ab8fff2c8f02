"""Router losses are those of `transformers`, window by window; evaluation has none."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from curriculum.config import Model
from curriculum.data.windows import Window
from curriculum.engine import attention
from curriculum.engine.batch import Batch, collate
from curriculum.engine.head import token_cross_entropy
from curriculum.engine.model import TrainModel, build_lm, check_isolation
from curriculum.engine.router import router_of
from curriculum.errors import RunError, UserError

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.25,
}
FAMILIES = {
    "qwen3_moe": {"num_experts": 5},
    "mixtral": {"num_local_experts": 5},
    "olmoe": {"num_experts": 5},
    "granitemoe": {"num_local_experts": 5},
    "gpt_oss": {"num_local_experts": 4, "sliding_window": 64},
}


def subject(family: str, **more: object) -> TrainModel:
    attention.register()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family], **more})
    return TrainModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), 16)


def window(seed: int, lengths: list[int], loss: float) -> Window:
    rng = np.random.default_rng(seed)
    weights = [np.r_[np.full(n - 1, loss, np.float32), np.float32(0)] for n in lengths]
    return Window(
        input_ids=rng.integers(1, 97, sum(lengths)).astype(np.int32),
        seq_lens=np.array(lengths, np.int32),
        loss_weights=np.concatenate(weights),
        document_ids=np.zeros(0, np.int64),
        record_ids=np.arange(len(lengths), dtype=np.int64),
    )


WINDOWS = [window(0, [5, 9], 1.0), window(1, [12], 0.0), window(2, [3, 4, 4], 0.5)]


def sums(model: TrainModel, batch: Batch) -> tuple[float, float]:
    loss, weight = model(batch, "rows", token_cross_entropy(batch))
    return loss.item(), weight.item()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("isolates", [True, False])
def test_the_loss_of_each_window_is_that_of_transformers(family: str, isolates: bool) -> None:
    model = subject(family).train()
    lm = model.lm
    given = lm.base_model(torch.ones(1, 3, dtype=torch.long), output_router_logits=True)
    check_isolation(model)
    if not isolates:
        model.lm.set_attn_implementation("eager")
        model.isolates = False
    with torch.no_grad():
        plain, _ = sums(model, collate(WINDOWS, torch.device("cpu")))
    if not given.router_logits:  # as releases of transformers before 5.24 do with granitemoe
        with pytest.raises(RunError, match=r"model\.router_loss=false"):
            sums(model, collate(WINDOWS, torch.device("cpu")))
        return
    full, weight = sums(model, collate(WINDOWS, torch.device("cpu")))
    expected = 0.0
    lm.set_attn_implementation("eager")
    for made in WINDOWS:
        layers: list[list[torch.Tensor]] = []
        ids = torch.from_numpy(made.input_ids).long()
        for part in ids.split(made.seq_lens.tolist()):
            found = lm(part[None], output_router_logits=True, use_cache=False).router_logits
            layers.append(list(found))
        logits = tuple(torch.cat(parts) for parts in zip(*layers, strict=True))
        experts = logits[0].shape[1]
        balance = load_balancing_loss_func(logits, experts, 2).item()
        expected += balance * made.loss_weights.sum()
    assert weight == pytest.approx(12 + 0 + 4)
    assert full - plain == pytest.approx(0.25 * expected, rel=1e-4)


def test_a_dummy_adds_nothing() -> None:
    model = subject("qwen3_moe").train()
    loss, weight = sums(model, collate([], torch.device("cpu")))
    assert (loss, weight) == (0.0, 0.0)


def test_generation_with_a_mask() -> None:
    """Models with `output_router_logits` form a router loss, of one token and a longer mask."""
    model = subject("qwen3_moe").eval()
    model.lm.set_attn_implementation("eager")
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    arguments = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **arguments)
    assert found.shape == (2, 7)
    assert model.lm.config.output_router_logits is True


def model_of(family: str, router_loss: bool | None, **more: object) -> Model:
    config = {"model_type": family, **SIZES, **more}
    return Model("tiny", None, config, None, None, None, router_loss=router_loss)


def test_the_choice_overrides_the_models_config() -> None:
    for said in (True, False):
        for router_loss in (True, False, None):
            lm = build_lm(
                model_of("qwen3_moe", router_loss, num_experts=5, output_router_logits=said), 0
            )
            wanted = said if router_loss is None else router_loss
            assert (router_of(lm.config) is not None) == wanted


def test_router_losses_of_a_dense_model_are_refused() -> None:
    config = {k: v for k, v in SIZES.items() if "router" not in k}
    dense = Model("tiny", None, {"model_type": "qwen3", **config}, None, None, None, True)
    with pytest.raises(UserError, match=r"model\.router_loss=true: qwen3 has no router losses"):
        build_lm(dense, 0)
