"""Updates against torch and by hand, unsharded; which parameter falls into which group."""

import math
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from transformers import AutoConfig, AutoModelForCausalLM

from curriculum.config import Optim
from curriculum.engine import attention
from curriculum.engine.model import TrainModel
from curriculum.engine.optim import build_optimizer, set_learning_rate
from curriculum.engine.optim.build import hidden_matrices
from curriculum.engine.optim.muon import (
    Muon,
    in_batches,
    lr_adjustment,
    newton_schulz,
    owners,
    rows,
)
from curriculum.engine.optim.signsgd import SignSGD

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
COMMON: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": None}
ADAMW: dict[str, Any] = {"betas": (0.9, 0.95), "eps": 1e-8}
MUON: dict[str, Any] = {
    "momentum": 0.9,
    "nesterov": True,
    "adjust_lr_fn": "match_rms_adamw",
    "adamw_lr_ratio": 0.5,
    "ns_coefficients": COEFFICIENTS,
    "ns_steps": 5,
    "ns_eps": 1e-7,
    "ns_dtype": "float32",
}
OPTIMS = {
    "adamw": Optim(name="adamw", **COMMON, **ADAMW),
    "muon": Optim(name="muon", **COMMON, **ADAMW, **MUON),
    "signsgd": Optim(name="signsgd", **COMMON, momentum=0.9),
}


def model(model_type: str, **more: object) -> TrainModel:
    attention.register()
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 97,
        "max_position_embeddings": 64,
    }
    config = AutoConfig.for_model(model_type, **{**sizes, **more})
    return TrainModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), 16)


def give_gradients(subject: torch.nn.Module, seed: int, leave_out: str = "nothing") -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, p in subject.named_parameters():
        gradient = torch.randn(p.shape, generator=generator)
        p.grad = None if leave_out in name or not p.requires_grad else gradient


def orthogonal(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """What Newton-Schulz is in exact arithmetic: a polynomial of each singular value."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


# rounding of 6e-8 is enlarged by up to 3.4445^5 = 485; bfloat16 has 4e-3 instead
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (torch.bfloat16, 0.15)])
@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 8, 8)])
def test_newton_schulz_is_a_polynomial_of_the_singular_values(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    matrices = 1e-3 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    got = newton_schulz(matrices.to(dtype), COEFFICIENTS, 5, 1e-7)
    assert got.dtype == dtype
    for matrix, out in zip(matrices, got, strict=True):
        assert (out.double() - orthogonal(matrix)).abs().max() < tolerance


def test_newton_schulz_is_nearly_orthogonal() -> None:
    """Singular values between 0.68 and 1.14, the known band of these coefficients."""
    matrices = torch.randn(4, 24, 60, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(newton_schulz(matrices, COEFFICIENTS, 5, 1e-7))
    assert 0.68 < values.min() < values.max() < 1.14


def test_a_zero_matrix_stays_zero() -> None:
    assert not newton_schulz(torch.zeros(2, 4, 6), COEFFICIENTS, 5, 1e-7).any()


def test_batches_keep_order_and_shape() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 6), (2, 4, 6), (6, 4), (4, 6), (0, 4, 6), (4, 6)]
    matrices = [torch.randn(shape, generator=generator) for shape in shapes]
    for elements in (1, 48, 1000):
        got = in_batches(matrices, lambda stack: stack * 2, elements)
        for matrix, out in zip(matrices, got, strict=True):
            torch.testing.assert_close(out, matrix * 2, atol=0, rtol=0)


@pytest.mark.parametrize("total", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_are_cut_as_torch_cuts_them(total: int, ranks: int) -> None:
    chunks = [len(chunk) for chunk in torch.arange(total).chunk(ranks)]
    assert rows(total, ranks) == chunks + [0] * (ranks - len(chunks))


def test_work_is_spread_over_ranks() -> None:
    shapes = [torch.Size((64, 64))] * 6 + [torch.Size((64, 192))] * 2
    owner = owners(shapes, 2)
    assert [owner[6:].count(rank) for rank in (0, 1)] == [1, 1]
    assert [owner[:6].count(rank) for rank in (0, 1)] == [3, 3]


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_takes_the_steps_of_torch(adjust: str, nesterov: bool) -> None:
    """Both iterate in bfloat16: paths differ by its rounding, below 2 percent of their length."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((24, 40), (40, 24))]
    mine, theirs = ([torch.nn.Parameter(s.clone()) for s in start] for _ in range(2))
    rate, settings = 1e-3, {"momentum": 0.9, "nesterov": nesterov, "adjust_lr_fn": adjust}
    subject = Muon(
        [{"params": mine, "weight_decay": 0.3}],
        lr=rate,
        ns_coefficients=COEFFICIENTS,
        ns_steps=5,
        ns_eps=1e-7,
        ns_dtype=torch.bfloat16,
        **settings,
    )
    torchs = torch.optim.Muon(theirs, lr=rate, weight_decay=0.3, **settings)
    for _ in range(3):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        subject.step()
        torchs.step()
    for p, q, s in zip(mine, theirs, start, strict=True):
        assert (p - q).norm() < 0.02 * (q - s).norm()
        torch.testing.assert_close(
            subject.state[p]["momentum_buffer"], torchs.state[q]["momentum_buffer"]
        )


def test_muon_without_a_gradient_direction_only_decays() -> None:
    """Experts that no token visited: zero gradient, so no direction; weight decay acts."""
    p = torch.nn.Parameter(torch.ones(2, 3, 4))
    subject = build_muon(p)
    p.grad = torch.zeros(2, 3, 4)
    p.grad[0] = torch.randn(3, 4)
    subject.step()
    torch.testing.assert_close(p[1], torch.full((3, 4), 1 - 1e-2 * 0.1))
    assert (p[0] - p[1]).abs().max() > 1e-4


def build_muon(*params: torch.nn.Parameter) -> Muon:
    settings = {k: v for k, v in MUON.items() if k not in ("adamw_lr_ratio", "ns_dtype")}
    groups = [{"params": list(params), "weight_decay": 0.1}]
    return Muon(groups, lr=1e-2, ns_dtype=torch.float32, **settings)


@pytest.mark.parametrize(("kind", "factor"), [("original", 2.0), ("match_rms_adamw", 4.0)])
def test_learning_rate_adjustment(kind: str, factor: float) -> None:
    assert lr_adjustment(kind, 400, 100) == pytest.approx(factor)
    assert lr_adjustment("original", 100, 400) == 1.0


def test_matched_updates_are_as_large_as_those_of_adamw() -> None:
    """An orthogonal m x n matrix has a root mean square of 1 / sqrt(max(m, n))."""
    for m, n in ((24, 60), (60, 24)):
        u, _, v = torch.linalg.svd(torch.randn(m, n), full_matrices=False)
        size = (u @ v).square().mean().sqrt() * lr_adjustment("match_rms_adamw", m, n)
        assert size.item() == pytest.approx(0.2, rel=1e-4)


def test_signsgd_by_hand() -> None:
    p = torch.nn.Parameter(torch.tensor([[1.0, -2.0, 3.0, 4.0]]))
    subject = SignSGD([{"params": [p], "weight_decay": 0.5}], lr=0.1, momentum=0.5)
    p.grad = torch.tensor([[0.2, -7.0, 0.0, 1.0]])
    subject.step()
    # averages 0.1, -3.5, 0, 0.5
    torch.testing.assert_close(p.data, torch.tensor([[0.85, -1.8, 2.85, 3.7]]))
    p.grad = torch.tensor([[-0.3, 1.0, 1.0, -0.4]])
    subject.step()
    # averages -0.1, -1.25, 0.5, 0.05
    torch.testing.assert_close(p.data, torch.tensor([[0.9075, -1.61, 2.6075, 3.415]]))


def test_signsgd_without_momentum_keeps_nothing() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    subject = SignSGD([{"params": [p]}], lr=0.1, momentum=0.0)
    for gradient in ([5.0, -1e-9, 0.0], [-1.0, 2.0, 0.0]):
        p.grad = torch.tensor(gradient)
        subject.step()
    torch.testing.assert_close(p.data, torch.ones(3))
    assert not subject.state


@pytest.mark.parametrize("tied", [True, False])
def test_adamw_is_that_of_torch(tied: bool) -> None:
    """Every parameter once, norms without decay; torch's own for-loop form, in float64."""
    subject, plain = (model("qwen3", head_dim=8, tie_word_embeddings=tied) for _ in range(2))
    plain = plain.double()
    optimizer = build_optimizer(subject, OPTIMS["adamw"])
    norms = [p for n, p in plain.named_parameters() if "norm" in n]
    others = [p for n, p in plain.named_parameters() if "norm" not in n]
    groups = [{"params": others}, {"params": norms, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(
        groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False
    )
    for number in range(3):
        give_gradients(subject, number)
        for p, q in zip(subject.parameters(), plain.parameters(), strict=True):
            q.grad = p.grad.double()  # type: ignore[union-attr]
        optimizer.step()
        reference.step()
    for p, q in zip(subject.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.double(), q, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMS)
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_once_and_frozen_ones_never(name: str, tied: bool) -> None:
    subject = model("qwen3", head_dim=8, tie_word_embeddings=tied)
    frozen = subject.lm.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    optimizer = build_optimizer(subject, OPTIMS[name])
    held = [p for group in optimizer.param_groups for p in group["params"]]
    trained = {id(p) for p in subject.parameters()} - {id(frozen)}
    assert len(held) == len({id(p) for p in held})
    assert {id(p) for p in held} == trained
    before = frozen.clone()
    give_gradients(subject, 0)
    optimizer.step()
    assert torch.equal(frozen, before)


@pytest.mark.parametrize("name", OPTIMS)
def test_a_parameter_without_gradient_stays_as_it_is(name: str) -> None:
    """Neither moved, nor decayed, nor its moments or its count of steps touched."""
    subject = model("qwen3", head_dim=8)
    optimizer = build_optimizer(subject, OPTIMS[name])
    give_gradients(subject, 0)
    optimizer.step()
    named = dict(subject.named_parameters())
    for left_out in ("lm_head", "up_proj", "norm"):
        silent = [p for n, p in named.items() if left_out in n]
        before = [p.detach().clone() for p in silent]
        kept = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in silent]
        give_gradients(subject, 1, left_out)
        optimizer.step()
        for p, weights, moments in zip(silent, before, kept, strict=True):
            assert torch.equal(p, weights)
            assert moments.keys() == optimizer.state[p].keys() != set()
            assert all(torch.equal(optimizer.state[p][k], v) for k, v in moments.items())


@pytest.mark.parametrize("name", OPTIMS)
def test_norms_and_biases_do_not_decay_and_embeddings_do(name: str) -> None:
    """Zero gradients leave decay alone: what shrinks is what decays."""
    subject = model("gpt_oss", num_local_experts=3, head_dim=8, sliding_window=8)
    optimizer = build_optimizer(subject, OPTIMS[name])
    named = dict(subject.named_parameters())
    for p in named.values():
        p.data.fill_(1.0)
        p.grad = torch.zeros_like(p)
    optimizer.step()
    still = {n for n, p in named.items() if bool((p == 1).all())}
    assert {n for n in named if "norm" in n or n.endswith("bias") or "sinks" in n} == still
    assert any(named[n].ndim == 2 and "experts" in n for n in still)
    assert {"lm.model.embed_tokens.weight", "lm.lm_head.weight"}.isdisjoint(still)


LLAMA = {
    f"lm.model.layers.{i}.{part}.weight"
    for i in (0, 1)
    for part in (
        *(f"self_attn.{x}_proj" for x in "qkvo"),
        *(f"mlp.{x}_proj" for x in ("gate", "up", "down")),
    )
}


@pytest.mark.parametrize("tied", [True, False])
def test_hidden_matrices_of_a_dense_model(tied: bool) -> None:
    assert hidden_matrices(model("llama", tie_word_embeddings=tied)) == LLAMA


def test_hidden_matrices_of_other_families() -> None:
    moe = model("gpt_oss", num_local_experts=3, head_dim=8, sliding_window=8)
    got = {n.removeprefix("lm.model.layers.0.") for n in hidden_matrices(moe) if ".0." in n}
    assert got == {
        *(f"self_attn.{x}_proj.weight" for x in "qkvo"),
        "mlp.router.weight",
        "mlp.experts.gate_up_proj",
        "mlp.experts.down_proj",
    }
    gpt2 = model("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64)
    got = {n.removeprefix("lm.transformer.h.0.") for n in hidden_matrices(gpt2) if "h.0." in n}
    parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert got == {f"{part}.weight" for part in parts}
    assert not any("wpe" in n or "wte" in n for n in hidden_matrices(gpt2))
    mamba = model("mamba", state_size=4)
    got = {
        n.removeprefix("lm.backbone.layers.0.mixer.") for n in hidden_matrices(mamba) if "0." in n
    }
    assert got == {f"{x}_proj.weight" for x in ("in", "x", "dt", "out")}


def test_muon_leaves_the_rest_to_adamw_at_its_own_rate() -> None:
    subject = model("llama")
    optimizer = build_optimizer(subject, OPTIMS["muon"])
    set_learning_rate(optimizer, 0.3)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, p in subject.named_parameters():
        assert rates[id(p)] == pytest.approx(0.3 if name in LLAMA else 0.15), name
    give_gradients(subject, 0)
    before = {n: p.detach().clone() for n, p in subject.named_parameters()}
    optimizer.step()
    for name, p in subject.named_parameters():
        kept = set(optimizer.state[p])
        if name in LLAMA:
            assert kept == {"momentum_buffer"}
            continue
        assert kept == {"step", "exp_avg", "exp_avg_sq"}
        # AdamW's first step is its rate in every place
        moved = (p - before[name] * (1 - (0.015 if p.ndim > 1 else 0.0))).abs()
        assert moved.median().item() == pytest.approx(0.15, rel=1e-4)


def test_what_an_optimizer_needs_and_does_not_use() -> None:
    build = TypeAdapter(Optim).validate_python
    with pytest.raises(ValidationError, match="muon needs adamw_lr_ratio, adjust_lr_fn"):
        build({"name": "muon", **COMMON, **ADAMW, "momentum": 0.9})
    with pytest.raises(ValidationError, match="signsgd does not use betas, eps"):
        build({"name": "signsgd", **COMMON, **ADAMW, "momentum": 0.9})
    with pytest.raises(ValidationError, match="adamw does not use momentum"):
        build({"name": "adamw", **COMMON, **ADAMW, "momentum": 0.9})
    assert math.isclose(build({"name": "signsgd", **COMMON, "momentum": 0.0}).lr, 1e-2)
