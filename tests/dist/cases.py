"""What each gloo process runs. Every case returns plain values; rank 0 writes them."""

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch

from curriculum import objectives
from curriculum.engine.distributed import World, world
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.model import build_lm, modes, wrap
from curriculum.engine.step import Engine


def engine(ranks: World, tied: bool, **settings: Any) -> Engine:
    wrapped = wrap(build_lm(tiny.model_config(tied), 0), tiny.ENGINE, ranks)
    return Engine(wrapped, ranks, replace(tiny.ENGINE, **settings), tiny.OPTIM)


def full_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("lm."): p.detach().full_tensor().clone()
        for name, p in model.named_parameters()
    }


def step_windows(objective: str, per_window: int) -> list[Any]:
    if objective == "retrieval":
        return tiny.group_windows(tiny.groups())
    return tiny.windows(tiny.examples(objective), per_window)


def invariance(ranks: World) -> Any:
    """Loss and weights after one plain SGD step, over ways to lay the same step out."""
    found = {}
    for tied in (True, False):
        for objective in ("generative", "causal", "retrieval"):
            for per_window, micro in ((1, 1), (1, 4), (3, 2), (4, 99), (3, 3)):
                subject = engine(ranks, tied)
                if (per_window, micro) == (3, 3):  # as for models that cannot take packed rows
                    modes.set_attention(subject.model.lm, "sdpa")
                    subject.model.isolates = False
                subject.optim = tiny.without_clip()
                subject.optimizer = torch.optim.SGD(subject.model.parameters(), lr=0.1)
                windows = step_windows(objective, per_window)
                result = subject.step(
                    subject.micro_batches(windows, micro),
                    objectives.build("p", tiny.phase(objective, len(windows))),
                    0.1,
                )
                weights = full_weights(subject.model)
                found[f"{objective}-tied{tied}-pack{per_window}-micro{micro}"] = {
                    "loss": result.loss,
                    "norm": result.grad_norm,
                    "forward_tokens": result.forward_tokens,
                    "trained_tokens": result.trained_tokens,
                    "weights": {n: w.flatten().tolist() for n, w in weights.items()},
                }
    return found


def norms_with_evaluation(ranks: World) -> Any:
    """Norms and final weights of four steps: without evaluation, with one between backward and
    clipping of each step, with one before the optimizer is built, and that without the reshard."""

    def trajectory(tied: bool, evaluate: bool, early: bool = False) -> dict[str, Any]:
        subject = engine(ranks, tied)
        evaluator = Evaluator(subject.model, ranks, 40)
        if early:
            evaluator.losses(tiny.windows(tiny.examples("causal", 5, seed=9), 2))
            subject.reset_optimizer()
        objective = objectives.build("p", tiny.phase("generative", 4))
        norms = []
        for number in range(4):
            windows = tiny.windows(tiny.examples("generative", seed=number), 3)
            hook = None
            if evaluate:
                # between the last backward and the clipping: the worst place
                hook = before_norm(lambda: evaluate_all(evaluator))
            with hook or nothing():
                norms.append(
                    subject.step(subject.micro_batches(windows, 1), objective, 1e-2).grad_norm
                )
        weights = full_weights(subject.model)
        return {
            "norms": [norm.hex() for norm in norms],
            "sums": {n: w.double().sum().item().hex() for n, w in weights.items()},
        }

    found = {}
    for tied in (True, False):
        plain = trajectory(tied, False)
        with_evaluation = trajectory(tied, True)
        early = trajectory(tied, False, early=True)
        reshard = modes.reshard
        modes.reshard = lambda model: None
        try:
            broken = trajectory(tied, False, early=True)
        finally:
            modes.reshard = reshard
        found[f"tied{tied}"] = {
            "plain": plain,
            "evaluated": with_evaluation,
            "early": early,
            "broken": broken,
        }
    return found


@contextmanager
def nothing() -> Any:
    yield


@contextmanager
def before_norm(action: Callable[[], None]) -> Any:
    from curriculum.engine import step as step_module

    original = step_module.local_gradients

    def wrapped(optimizer: torch.optim.Optimizer) -> Any:
        action()
        return original(optimizer)

    step_module.local_gradients = wrapped
    try:
        yield
    finally:
        step_module.local_gradients = original


def evaluate_all(evaluator: Evaluator) -> None:
    evaluator.losses(tiny.windows(tiny.examples("causal", 5, seed=9), 2))
    evaluator.embed([[1, 2, 3], [4, 5]])
    evaluator.generate([[1, 2], [3, 4, 5]], 3, {0})


def evaluations(ranks: World) -> Any:
    """What an evaluator finds; sets of 1, 3 and 5 rows, prompts of unequal length."""
    wrapped = wrap(build_lm(tiny.model_config(True), 0), tiny.ENGINE, ranks)
    found: dict[str, Any] = {}
    for batch_tokens in (1, 40, 4000):
        evaluator = Evaluator(wrapped, ranks, batch_tokens)
        for count in (1, 3, 5):
            rows = tiny.windows(tiny.examples("causal", count, seed=3), 1)
            found[f"losses-{count}-{batch_tokens}"] = evaluator.losses(rows)
        texts = [tokens for tokens, _ in tiny.examples("causal", 5, seed=4)]
        found[f"embed-{batch_tokens}"] = evaluator.embed(texts).tolist()
        prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14]]
        found[f"generate-{batch_tokens}"] = evaluator.generate(prompts, 6, {0, 3})
    return found


def clipping(ranks: World) -> Any:
    """Size of a clipped SGD update with rate 1, in one micro-batch and in four."""
    found = {}
    for micro in (99, 3):
        subject = engine(ranks, True)
        subject.optimizer = torch.optim.SGD(subject.model.parameters(), lr=1.0)
        before = full_weights(subject.model)
        windows = step_windows("causal", 1)
        objective = objectives.build("p", tiny.phase("causal", len(windows)))
        subject.step(subject.micro_batches(windows, micro), objective, 1.0)
        after = full_weights(subject.model)
        moved = {name: after[name] - before[name] for name in after}
        size = torch.stack([m.double().square().sum() for m in moved.values()]).sum().sqrt()
        left = [p.grad for p in subject.model.parameters() if p.grad is not None]
        found[str(micro)] = {
            "size": size.item(),
            "gradients_left": len(left),
            "weights": {n: w.flatten().tolist() for n, w in after.items()},
        }
    return found


def dropped_steps(ranks: World) -> Any:
    """Steps that must not reach the weights: nothing trained; a loss weight that is not finite."""
    found = {}
    for name in ("nothing trained", "not finite"):
        made = tiny.examples("generative")
        value = 0.0 if name == "nothing trained" else float("nan")
        chosen = made if name == "nothing trained" else made[:1]
        for place, (tokens, ws) in enumerate(chosen):
            made[place] = (tokens, [value] * (len(ws) - 1) + [0.0])
        subject = engine(ranks, True)
        before = full_weights(subject.model)
        objective = objectives.build("p", tiny.phase("generative", len(made)))
        batches = subject.micro_batches(tiny.windows(made, 1), 2)
        result = subject.step(batches, objective, 1e-2)
        after = full_weights(subject.model)
        found[name] = {
            "applied": ranks.gather(result.applied),
            "equal": all(torch.equal(before[n], after[n]) for n in before),
            "moments": len(subject.optimizer.state),
        }
    return found


def optimizer_boundary(ranks: World) -> Any:
    """Weights after two steps: moments carried, reset between, and from a new engine."""
    windows = [tiny.windows(tiny.examples("causal", seed=n), 2) for n in range(2)]
    objective = objectives.build("p", tiny.phase("causal", 6))

    def step(subject: Engine, number: int) -> None:
        subject.step(subject.micro_batches(windows[number], 2), objective, 1e-2)

    found = {}
    for name in ("carry", "reset", "new"):
        subject = engine(ranks, True)
        step(subject, 0)
        if name == "reset":
            subject.reset_optimizer()
        if name == "new":
            subject = Engine(subject.model, ranks, tiny.ENGINE, tiny.OPTIM)
        moments = [state["exp_avg"] for state in subject.optimizer.state.values()]
        found[f"{name} moments"] = len(moments)
        step(subject, 1)
        sums = [w.double().sum().item().hex() for w in full_weights(subject.model).values()]
        found[name] = sums
    return found


def dropout_and_evaluation(ranks: World) -> Any:
    """Six steps of a model with dropout; evaluation never, at every step, at every third."""
    found = {}
    for interval in (0, 1, 3):
        lm = build_lm(tiny.model_config(True, attention_dropout=0.3), 0)
        subject = Engine(wrap(lm, tiny.ENGINE, ranks), ranks, tiny.ENGINE, tiny.OPTIM)
        evaluator = Evaluator(subject.model, ranks, 40)
        objective = objectives.build("p", tiny.phase("causal", 6))
        torch.manual_seed(ranks.rank)
        losses = []
        for number in range(6):
            if interval and number % interval == 0:
                evaluate_all(evaluator)
            windows = tiny.windows(tiny.examples("causal", seed=number), 2)
            result = subject.step(subject.micro_batches(windows, 2), objective, 1e-2)
            losses.append(result.loss.hex())
        found[str(interval)] = losses
    return found


CASES = {
    case.__name__: case
    for case in (
        invariance,
        norms_with_evaluation,
        evaluations,
        clipping,
        dropped_steps,
        optimizer_boundary,
        dropout_and_evaluation,
    )
}


def main(out: str) -> None:
    with world(tiny.ENGINE) as ranks:
        found = {name: case(ranks) for name, case in CASES.items()}
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
