"""Memory of a rank against real optimizers, real shards, and the allocations of real steps."""

import numpy as np
import pytest
import torch
from plan_builders import config, phase
from test_plan_parameters import SMALL, built
from torch.profiler import ProfilerActivity, profile

from curriculum import objectives
from curriculum.data.windows import Window
from curriculum.engine.distributed import world
from curriculum.engine.model import TrainModel, build_lm, wrap
from curriculum.engine.optim import build_optimizer
from curriculum.engine.step import Engine
from curriculum.plan.decoder import Unknown
from curriculum.plan.memory import micro_batches, model_of, phase_memory

DENSE = {"model_type": "qwen3", **SMALL, "head_dim": 16}
SPARSE = {
    "model_type": "qwen3_moe",
    **SMALL,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "tie_word_embeddings": True,
}
ADAMW = {
    "name": "adamw",
    "lr": 1e-3,
    "betas": [0.9, 0.95],
    "eps": 1e-8,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
}
MUON = {
    **ADAMW,
    "name": "muon",
    "momentum": 0.95,
    "nesterov": True,
    "adjust_lr_fn": "match_rms_adamw",
    "adamw_lr_ratio": 1.0,
    "ns_coefficients": [3.4445, -4.775, 2.0315],
    "ns_steps": 5,
    "ns_eps": 1e-7,
    "ns_dtype": "float32",
}
SIGNSGD = {
    "name": "signsgd",
    "lr": 1e-3,
    "momentum": 0.9,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
}


def settings(model=DENSE, optim=ADAMW, lora=None, engine=(), **more):
    found = config({"a": phase(**more)}, optim=optim)
    found.model.config = model
    found.model.lora = lora
    for name, value in dict(engine).items():
        setattr(found.engine, name, value)
    return found


def memory(found, ranks=1, density=1.0):
    return phase_memory(found, found.plan.phases["a"], model_of(found), ranks, density)


@pytest.mark.parametrize("model", [DENSE, SPARSE])
@pytest.mark.parametrize("ranks", [1, 4, 64])
def test_parameters_are_the_first_ranks_chunks(model, ranks):
    share = sum(p.chunk(ranks)[0].numel() for p in built(model).parameters())
    found = memory(settings(model), ranks)
    assert found.parameters == 4 * share
    assert found.optimizer == 8 * share


@pytest.mark.parametrize("optim", [ADAMW, MUON, SIGNSGD, {**SIGNSGD, "momentum": 0.0}])
def test_optimizer_states_are_those_of_the_optimizer(optim):
    found = settings(SPARSE, optim)
    model = TrainModel(build_lm(found.model, 0), 8)
    optimizer = build_optimizer(model, found.optim)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    states = [
        value for s in optimizer.state.values() for value in s.values() if torch.is_tensor(value)
    ]
    real = sum(t.numel() * t.element_size() for t in states if t.ndim)
    assert memory(found).optimizer == real


def test_adapters_alone_have_gradients_and_states():
    from curriculum.config import Lora
    from curriculum.engine.lora import add_adapters

    lora = Lora(r=4, alpha=8, dropout=0.0, targets="all-linear")
    model = built(DENSE)
    frozen = sum(p.numel() for p in model.parameters())
    add_adapters(model, lora, 0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = memory(settings(lora=lora))
    assert found.parameters == 4 * (frozen + trained)
    assert found.optimizer == 8 * trained
    assert found.gradients < 4 * frozen


def test_replicas_hold_as_much_as_fewer_ranks():
    wide = settings(engine={"replicate": 4})
    assert memory(wide, 16) == memory(settings(), 4)


def test_several_micro_batches_hold_whole_gradients():
    """64 ranks of 32 windows take one each; 4 ranks take eight, of which the engine fits two."""
    found = settings(batch_size=32, seq_len=8, engine={"micro_batch_tokens": 16})
    shape = found.plan.phases["a"]
    assert micro_batches(found.engine, shape, 64) == (1, 8)
    assert micro_batches(found.engine, shape, 4) == (4, 16)
    whole = 4 * sum(p.numel() for p in built(DENSE).parameters())
    assert memory(found, 64).gradients < whole < memory(found, 4).gradients


def test_a_group_of_texts_is_one_window():
    found = settings(
        objective="retrieval",
        task="retrieval",
        role="replay",
        batch_size=8,
        seq_len=8,
        engine={"micro_batch_tokens": 64},
    )
    assert micro_batches(found.engine, found.plan.phases["a"], 2) == (2, 64)


def test_an_unknown_model_says_what_to_do():
    with pytest.raises(Unknown, match=r"model_type=mamba2.*give model.path=DIR"):
        model_of(settings({**SMALL, "model_type": "mamba2"}))
    with pytest.raises(Unknown, match=r"model=m; give model.path=DIR"):
        model_of(settings(None))


def test_weights_of_an_unknown_family_are_counted_from_files(tmp_path):
    import json

    from test_plan_parameters import write

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", "hidden_size": 4}))
    write(tmp_path / "model.safetensors", [("a.0.w", [6, 4]), ("wte.weight", [10, 4])])
    found = settings(None)
    found.plan.init_from = str(tmp_path)
    known = memory(found, 2)
    assert (known.parameters, known.activations, known.total) == (4 * (12 + 20), None, None)
    assert "model_type=other" in model_of(found).why


def windows(found):
    shape = found.plan.phases["a"]
    texts = 4 if shape.retrieval else 1
    size = texts * shape.seq_len
    generator = np.random.default_rng(0)
    for _ in range(shape.batch_size):
        weights = np.ones(size, np.float32) if texts == 1 else np.zeros(size, np.float32)
        weights[-1] = 0
        yield Window(
            input_ids=generator.integers(0, SMALL["vocab_size"], size).astype(np.int32),
            seq_lens=np.full(texts, shape.seq_len, np.int32),
            loss_weights=weights,
            document_ids=np.arange(1, texts + 1) if texts > 1 else np.zeros(0, np.int64),
            record_ids=[""] * texts,
        )


def really_at_most(found):
    """Bytes allocated at most during a step, over what lies there before it."""
    shape = found.plan.phases["a"]
    torch.manual_seed(0)
    with world(found.engine) as ranks:
        lm = wrap(build_lm(found.model, 0), found.engine, ranks)
        engine = Engine(lm, ranks, found.engine, found.optim)
        objective = objectives.build_all(found.plan)["a"]
        size = micro_batches(found.engine, shape, 1)[1] // shape.seq_len
        size //= 4 if shape.retrieval else 1
        for measured in (False, True):
            batches = engine.micro_batches(list(windows(found)), size)
            if not measured:
                engine.step(batches, objective, 1e-3)
                continue
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
                engine.step(batches, objective, 1e-3)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    assert held[-1] == 0
    return int(held.max())


WIDER = {"hidden_size": 96, "intermediate_size": 256, "vocab_size": 2048}
STEPS = {
    "long": {"seq_len": 512, "batch_size": 1},
    "accumulated": {"seq_len": 256, "batch_size": 3, "micro_batch_size": 1},
    "short": {"seq_len": 16, "batch_size": 1},
    "bfloat16": {"seq_len": 256, "batch_size": 2, "engine": {"dtype": "bfloat16"}},
    "computed again": {
        "seq_len": 512,
        "batch_size": 1,
        "engine": {"activation_checkpointing": "full"},
    },
    "every second again": {
        "seq_len": 512,
        "batch_size": 1,
        "engine": {"activation_checkpointing": "selective"},
    },
    "sparse": {"seq_len": 256, "batch_size": 2, "model": {**SPARSE, **WIDER}},
    "texts": {
        "objective": "retrieval",
        "task": "retrieval",
        "role": "replay",
        "seq_len": 64,
        "batch_size": 4,
        "micro_batch_size": 2,
    },
}


@pytest.mark.parametrize("case", STEPS)
def test_peak_is_that_of_a_real_step(case):
    given = {"model": {**DENSE, **WIDER}, **STEPS[case]}
    given["engine"] = {"micro_batch_tokens": 4096, "head_chunk_rows": 64, **given.get("engine", {})}
    found = settings(**given)
    known = memory(found)
    passing = known.peak - known.parameters - known.optimizer
    assert passing == pytest.approx(really_at_most(found), rel=0.1)
    assert known.peak < known.total
