"""One step is the same step at any layout and world size, with and without evaluation."""

from typing import Any

import pytest
import torch

import tiny
from launch import launch

WORLDS = (1, 2)


@pytest.fixture(scope="module", params=WORLDS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("dist") / "found.json"
    return launch(request.param, out)


def _reference_step(objective: str, tied: bool) -> tuple[float, float, dict[str, torch.Tensor]]:
    lm = tiny.reference_model(tiny.model_config(tied))
    if objective == "retrieval":
        loss = tiny.retrieval_loss(lm, tiny.groups(), 0.2)
    else:
        loss = tiny.token_loss(lm, tiny.examples(objective))
    loss.backward()
    gradients = [p.grad for p in lm.parameters() if p.grad is not None]
    norm = torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt()
    torch.optim.SGD(lm.parameters(), lr=0.1).step()
    return loss.item(), norm.item(), {n: p.detach() for n, p in lm.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("objective", ["generative", "causal", "retrieval"])
def test_step_equals_plain_pytorch_at_every_layout(found: Any, objective: str, tied: bool) -> None:
    loss, norm, weights = _reference_step(objective, tied)
    layouts = {
        name: value
        for name, value in found["invariance"].items()
        if name.startswith(f"{objective}-tied{tied}")
    }
    assert len(layouts) == 5
    for name, got in layouts.items():
        assert got["loss"] == pytest.approx(loss, rel=2e-6), name
        assert got["norm"] == pytest.approx(norm, rel=1e-5), name
        assert got["weights"].keys() == weights.keys()
        for parameter, expected in weights.items():
            actual = torch.tensor(got["weights"][parameter]).double().reshape(expected.shape)
            torch.testing.assert_close(
                actual, expected, atol=1e-6, rtol=2e-5, msg=f"{name} {parameter}"
            )


def test_tokens_are_counted_once(found: Any) -> None:
    made = tiny.examples("generative")
    for name, got in found["invariance"].items():
        if name.startswith("generative"):
            assert got["forward_tokens"] == sum(len(tokens) for tokens, _ in made), name
            assert got["trained_tokens"] == sum(w > 0 for _, ws in made for w in ws), name
        if name.startswith("retrieval"):
            texts = [text for texts, _ in tiny.groups() for text in texts]
            assert got["forward_tokens"] == sum(map(len, texts)), name


@pytest.mark.parametrize("tied", [True, False])
def test_evaluation_changes_no_norm_and_no_weight(found: Any, tied: bool) -> None:
    runs = found["norms_with_evaluation"][f"tied{tied}"]
    assert runs["evaluated"] == runs["plain"]
    assert runs["early"] == runs["plain"]


@pytest.mark.parametrize("tied", [True, False])
def test_without_the_reshard_the_norm_would_be_wrong(found: Any, tied: bool) -> None:
    runs = found["norms_with_evaluation"][f"tied{tied}"]
    assert runs["broken"]["norms"] != runs["plain"]["norms"]


def test_evaluations_equal_plain_pytorch(found: Any) -> None:
    lm = tiny.reference_model(tiny.model_config(True)).eval()
    got = found["evaluations"]
    for batch_tokens in (1, 40, 4000):
        for count in (1, 3, 5):
            made = tiny.examples("causal", count, seed=3)
            total = sum(w for _, ws in made for w in ws)
            loss_sum, weight_sum = got[f"losses-{count}-{batch_tokens}"]
            assert weight_sum == total
            assert loss_sum / weight_sum == pytest.approx(
                tiny.token_loss(lm, made).item(), rel=2e-6
            )
        for (tokens, _), row in zip(
            tiny.examples("causal", 5, seed=4), got[f"embed-{batch_tokens}"], strict=True
        ):
            state = lm.base_model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0, -1]
            torch.testing.assert_close(
                torch.tensor(row).double(), state / state.norm(), atol=1e-5, rtol=0
            )
        for prompt, output in zip(
            [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]], got[f"generate-{batch_tokens}"], strict=True
        ):
            assert output == _greedy(lm, prompt, 6, {0, 3})


def _greedy(lm: Any, prompt: list[int], count: int, stops: set[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(lm(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


def test_the_accumulated_gradient_is_clipped_once(found: Any) -> None:
    one, four = found["clipping"]["99"], found["clipping"]["3"]
    assert one["size"] == pytest.approx(tiny.OPTIM.max_grad_norm, rel=1e-4)
    assert four["size"] == pytest.approx(tiny.OPTIM.max_grad_norm, rel=1e-4)
    assert one["gradients_left"] == four["gradients_left"] == 0
    for name, weights in one["weights"].items():
        assert four["weights"][name] == pytest.approx(weights, abs=1e-6), name


@pytest.mark.parametrize("why", ["nothing trained", "not finite"])
def test_a_bad_step_reaches_no_weight_on_any_rank(found: Any, why: str) -> None:
    got = found["dropped_steps"][why]
    assert not any(got["applied"])
    assert got["equal"]
    assert got["moments"] == 0


def test_moments_are_carried_or_reset(found: Any) -> None:
    got = found["optimizer_boundary"]
    assert got["reset moments"] == 0 < got["carry moments"]
    assert got["reset"] == got["new"]
    assert got["reset"] != got["carry"]


def test_evaluation_draws_no_random_number_of_training(found: Any) -> None:
    got = found["dropout_and_evaluation"]
    assert got["1"] == got["0"]
    assert got["3"] == got["0"]
