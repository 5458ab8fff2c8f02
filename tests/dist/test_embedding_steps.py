"""A projection of embeddings: one step is plain PyTorch's, other phases and resuming keep it."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from embedding_cases import TEXTS
from launch import launch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel


@pytest.fixture(scope="module", params=["1-1", "2-1", "2-2"], ids=["alone", "shards", "replicas"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    processes, replicate = request.param.split("-")
    folder = tmp_path_factory.mktemp("embedding")
    words = (replicate, str(folder))
    got = launch(int(processes), folder / "found.json", *words, script="embedding_cases.py")
    return {**got, "out": folder / f"out{processes}"}


class Projecting(torch.nn.Module):
    """A base model whose states are multiplied with a matrix: nothing of the engine's."""

    def __init__(self, lm: PreTrainedModel, weight: torch.Tensor) -> None:
        super().__init__()
        self.lm, self.weight = lm, torch.nn.Parameter(weight)

    def base_model(self, *given: Any, **more: Any) -> Any:
        output = self.lm.base_model(*given, **more)
        output.last_hidden_state = output.last_hidden_state @ self.weight.T
        return output


@pytest.mark.parametrize("micro", [1, 4, 99])
@pytest.mark.parametrize("count", [6, 1])
def test_a_step_is_plain_pytorchs(found: Any, count: int, micro: int) -> None:
    start = torch.tensor(found["steps"]["start"], dtype=torch.float64)
    assert start.shape == (12, 32)
    reference = Projecting(tiny.reference_model(tiny.model_config(True)), start)
    loss = tiny.retrieval_loss(reference, tiny.groups()[-count:], 0.2)  # type: ignore[arg-type]
    loss.backward()
    squares = [p.grad.square().sum() for p in reference.parameters() if p.grad is not None]
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    got = found["steps"][f"groups{count}-micro{micro}"]
    assert got["loss"] == pytest.approx(loss.item(), rel=2e-6)
    assert got["norm"] == pytest.approx(torch.stack(squares).sum().sqrt().item(), rel=1e-5)
    expected = dict(reference.lm.named_parameters())
    expected["embedding_head.weight"] = reference.weight
    assert got["weights"].keys() == expected.keys()
    for name, wanted in expected.items():
        actual = torch.tensor(got["weights"][name]).double().reshape(wanted.shape)
        torch.testing.assert_close(actual, wanted.detach(), atol=1e-6, rtol=2e-5, msg=name)


def test_phases_without_retrieval_keep_it_and_resuming_is_exact(found: Any) -> None:
    got = found["phases"]
    assert got["trained"] and got["kept"] and got["resumed"]
    assert set(got["moments"]) == {"exp_avg", "exp_avg_sq"} and all(got["moments"].values())
    assert "lm.embedding_head.weight" in got["moved with adapters"]


def test_what_is_exported_embeds_alike_in_plain_pytorch(found: Any) -> None:
    out: Path = found["out"]
    assert found["phases"]["reloaded"]
    settings = json.loads((out / "2_Dense" / "config.json").read_text())
    assert (settings["in_features"], settings["out_features"], settings["bias"]) == (32, 12, False)
    weight = load_file(out / "2_Dense" / "model.safetensors")["linear.weight"]
    lm = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert not any("embedding_head" in name for name in load_file(out / "model.safetensors"))
    for text, row in zip(TEXTS, found["phases"]["embedded"], strict=True):
        states = lm.base_model(torch.tensor([text])).last_hidden_state[0, -1] @ weight.T
        torch.testing.assert_close(torch.tensor(row), states / states.norm(), atol=1e-5, rtol=0)
