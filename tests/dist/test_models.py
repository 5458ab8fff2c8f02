"""Models of all kinds: one step is the same step at any layout, and directories go in and out."""

import shutil
from pathlib import Path
from typing import Any

import model_reference as reference
import pytest
import tiny
import torch
from launch import launch
from transformers import AutoModelForCausalLM

SCRIPT = "model_cases.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories as other tools write them; one in several files, one in bfloat16."""
    root = tmp_path_factory.mktemp("models")
    for number, (name, model) in enumerate(reference.PRETRAINED.items()):
        lm = tiny.reference_model(model, seed=100 + number).float()
        size = "20KB" if name in ("untied", "sparse") else "5GB"
        lm.save_pretrained(root / name, max_shard_size=size)
    return root


@pytest.fixture(scope="module")
def at(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a number of ranks and replicas found, run once."""
    cases = {
        (1, 1): ("experts", "recomputed", "pretrained", "adapters", "checkpoints", "halved"),
        (2, 1): ("experts", "recomputed", "pretrained", "adapters", "checkpoints", "halved"),
        (4, 1): ("dense", "experts"),
        (4, 2): ("dense", "experts"),
    }
    done: dict[tuple[int, int], Any] = {}

    def found(ranks: int, replicas: int) -> Any:
        if (ranks, replicas) not in done:
            out = tmp_path_factory.mktemp("found") / "found.json"
            words = (str(folder), str(replicas), *cases[ranks, replicas])
            done[ranks, replicas] = launch(ranks, out, *words, script=SCRIPT)
        return done[ranks, replicas]

    return found


def close(got: dict[str, list[float]], expected: dict[str, torch.Tensor], what: str) -> None:
    assert got.keys() == expected.keys()
    for name, wanted in expected.items():
        actual = torch.tensor(got[name]).double().reshape(wanted.shape)
        torch.testing.assert_close(actual, wanted, atol=1e-6, rtol=2e-5, msg=f"{what} {name}")


FOUR = pytest.param(4, 1, marks=pytest.mark.slow)


@pytest.mark.parametrize(("ranks", "replicas"), [(1, 1), (2, 1), FOUR, (4, 2)])
@pytest.mark.parametrize("family", list(reference.SPARSE))
def test_a_sparse_step_equals_plain_pytorch(
    at: Any, family: str, ranks: int, replicas: int
) -> None:
    found = at(ranks, replicas)["experts"]
    for name, objective, router_loss, layouts in reference.EXPERT_CASES:
        packings = {per_window for per_window, _ in layouts}
        expected = {
            per_window: reference.sparse_step(
                reference.SPARSE[family], objective, router_loss, per_window
            )
            for per_window in (packings if router_loss else [1])
        }
        for per_window, micro in layouts:
            loss, weights = expected.get(per_window) or expected[1]
            got = found[f"{family}/{name}/pack{per_window}-micro{micro}"]
            assert got["loss"] == pytest.approx(loss, rel=2e-6)
            close(got["weights"], weights, f"{name} {per_window} {micro}")


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("objective", ["generative", "causal", "retrieval"])
def test_a_dense_step_on_four_ranks_equals_plain_pytorch(
    at: Any, objective: str, tied: bool, replicas: int
) -> None:
    lm = tiny.reference_model(tiny.model_config(tied))
    if objective == "retrieval":
        loss = tiny.retrieval_loss(lm, tiny.groups(), 0.2)
    else:
        loss = tiny.token_loss(lm, tiny.examples(objective))
    loss.backward()
    norm = torch.stack([p.grad.square().sum() for p in lm.parameters() if p.grad is not None])
    torch.optim.SGD(lm.parameters(), lr=0.1).step()
    weights = {n: p.detach() for n, p in lm.named_parameters()}
    for per_window in (1, 3):
        got = at(4, replicas)["dense"][f"{objective}-tied{tied}-pack{per_window}"]
        assert got["loss"] == pytest.approx(loss.item(), rel=2e-6)
        assert got["norm"] == pytest.approx(norm.sum().sqrt().item(), rel=1e-5)
        close(got["weights"], weights, objective)


@pytest.mark.parametrize("ranks", [1, 2])
def test_recomputed_activations_change_no_weight(at: Any, ranks: int) -> None:
    found = at(ranks, 1)["recomputed"]
    assert found["full"] == found["none"]
    assert found["selective"] == found["none"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_compute_the_same(tmp_path: Path) -> None:
    words = (str(tmp_path), "1", "compiled")
    found = launch(2, tmp_path / "found.json", *words, script=SCRIPT)["compiled"]
    plain, compiled = found["False"], found["True"]
    assert compiled["losses"] == pytest.approx(plain["losses"], rel=2e-6)
    for name, weights in plain["weights"].items():
        assert compiled["weights"][name] == pytest.approx(weights, abs=3e-6), name


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", list(reference.PRETRAINED))
def test_weights_of_a_directory(at: Any, folder: Path, name: str, ranks: int) -> None:
    got = at(ranks, 1)["pretrained"][name]
    lm = AutoModelForCausalLM.from_pretrained(
        folder / name, dtype=torch.float32, attn_implementation="eager"
    )
    expected = {n: p.detach().numpy().tobytes().hex() for n, p in lm.named_parameters()}
    assert got["weights"] == expected
    whole = sum(p.numel() for p in lm.parameters())
    assert got["shard"] <= 0.6 * whole if ranks == 2 else got["shard"] == whole
    assert got["groups"] == lm.config.num_hidden_layers + 1
    # rotary frequencies and embedding scales, which lie in no file, decide these
    loss_sum, weight_sum = got["losses"]
    loss = tiny.token_loss(lm, tiny.examples("causal", 5, seed=3))
    assert loss_sum / weight_sum == pytest.approx(loss.item(), rel=5e-6)
    for prompt, output in zip([[5, 6, 7], [8]], got["generated"], strict=True):
        assert output == greedy(lm, prompt, 5, 0)


def greedy(lm: Any, prompt: list[int], count: int, stop: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(lm(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        if tokens[-1] == stop:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", list(reference.PRETRAINED))
def test_what_went_in_comes_out(at: Any, folder: Path, name: str, ranks: int) -> None:
    at(ranks, 1)
    was = AutoModelForCausalLM.from_pretrained(folder / name).state_dict()
    now = AutoModelForCausalLM.from_pretrained(folder / f"{name}-out{ranks}").state_dict()
    assert was.keys() == now.keys()
    assert all(torch.equal(was[key], now[key]) for key in was)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["tied", "gemma", "sparse"])
def test_checkpoints_fill_empty_models_and_models_with_adapters(
    at: Any, name: str, ranks: int
) -> None:
    got = at(ranks, 1)["checkpoints"][name]
    assert got["empty"] == got["losses"]
    assert got["adapted"] == got["losses"]


@pytest.mark.parametrize("name", list(reference.ADAPTED))
def test_adapters_train_and_the_base_stays(at: Any, name: str) -> None:
    one, two = at(1, 1)["adapters"][name], at(2, 1)["adapters"][name]
    assert one["start"] == two["start"]  # drawn alike at any world size
    for got in (one, two):
        assert got["moved"] and all(".lora_" in n for n in got["moved"])
        assert not any(".lora_" in n for n in got["kept"])
        assert got["moments"] == len(got["moved"])
        assert got["resumed"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", list(reference.ADAPTED))
def test_exported_adapters(at: Any, folder: Path, name: str, ranks: int) -> None:
    """The merged directory computes what was trained; so do base and adapters by `peft` itself."""
    from peft import PeftModel

    got = at(ranks, 1)["adapters"][name]
    loss_sum, weight_sum = got["losses"]
    out = folder / f"{name}-adapted{ranks}"
    lm = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert not any("lora" in key for key in lm.state_dict())
    examples = tiny.examples("causal", 5, seed=3)
    assert loss_sum / weight_sum == pytest.approx(tiny.token_loss(lm, examples).item(), rel=5e-6)
    if (folder / name).is_dir():
        base = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        tokens = torch.tensor([[4, 8, 15, 16, 23, 42]])
        assert (base(tokens).logits - lm(tokens).logits).abs().max() > 1e-2
        adapted = PeftModel.from_pretrained(base, out / "adapter")
        torch.testing.assert_close(adapted(tokens).logits, lm(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_bfloat16_compute_keeps_small_updates(at: Any, ranks: int) -> None:
    """Master weights and moments are float32: what bfloat16 would round away adds up."""
    found = at(ranks, 1)["halved"]
    assert found["moved"] > 0.9
    assert found["lost_in_bfloat16"] > 0.9  # by a step of the rate that these steps take
    assert found["moments"] == ["torch.float32"]
    assert found["stored"] == ["torch.float32"]
    assert found["loaded_equal"]
