"""What each gloo process runs of packed-choice steps, their evaluation, and losses that fail."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import choice_reference as reference
import tiny
import torch

from curriculum import config as schema
from curriculum import objectives
from curriculum.data.choice_set import choice_window
from curriculum.data.windows import Window
from curriculum.engine.distributed import World, world
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.model import build_lm, wrap
from curriculum.engine.step import Engine
from curriculum.errors import RunError

# bins of so many segments, micro-batches of so many bins; by whether the head is tied
LAYOUTS = {True: ((1, 1), (3, 1), (1, 4), (2, 4), (99, 1)), False: ((1, 1), (2, 4))}
SOFTCAP = {"model_type": "gemma2", "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 8}
GRANITE = {"model_type": "granite", "logits_scaling": 0.5, "attention_multiplier": 0.3}


def engine(
    ranks: World, tied: bool, sgd: bool = True, dtype: str = "float32", **model: object
) -> Engine:
    settings = replace(tiny.ENGINE, dtype=dtype)
    wrapped = wrap(build_lm(tiny.model_config(tied, **model), 0), settings, ranks)
    subject = Engine(wrapped, ranks, settings, tiny.without_clip() if sgd else tiny.OPTIM)
    if sgd:
        subject.optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    return subject


def phase(**loss: Any) -> schema.Phase:
    return schema.Phase(
        objective="choice",
        task="choice",
        role="calibration",
        batch_size=4,
        seq_len=64,
        data=schema.PhaseData(sources=["none"]),
        loss=schema.Loss(**loss),
    )


def windows(made: list[reference.Segment], per_bin: int) -> list[Window]:
    return [choice_window(one, reference.COMPONENTS) for one in reference.bins(made, per_bin)]


def weights_of(subject: Engine) -> dict[str, Any]:
    return {
        name.removeprefix("lm."): p.detach().full_tensor().flatten().tolist()
        for name, p in subject.model.named_parameters()
    }


def one_step(subject: Engine, made: list[Window], micro: int, **loss: Any) -> dict[str, Any]:
    objective = objectives.build("p", phase(**loss))
    result = subject.step(subject.micro_batches(made, micro), objective, 0.1)
    return {
        "loss": result.loss,
        "norm": result.grad_norm,
        "applied": result.applied,
        "trained": result.trained_tokens,
        "note": result.note,
        "weights": weights_of(subject),
    }


def steps(ranks: World) -> Any:
    """The default loss over layouts, the others in one; tied and untied; heads that transform."""
    found = {}
    made = reference.segments()
    for tied in (True, False):
        for per_bin, micro in LAYOUTS[tied]:
            key = f"default-tied{tied}-bin{per_bin}-micro{micro}"
            found[key] = one_step(engine(ranks, tied), windows(made, per_bin), micro)
    for name, (loss, _) in reference.LOSSES.items():
        found[name] = one_step(engine(ranks, True), windows(made, 2), 2, **loss)
    for name, model in (("softcap", SOFTCAP), ("granite", GRANITE)):
        found[name] = one_step(engine(ranks, False, **model), windows(made, 2), 2)
    return found


def few_rows(ranks: World) -> Any:
    """A step in which only one window has a row; one without any weight; one without any row."""
    made = reference.segments()
    found = {}
    for tied in (True, False):
        alone = [
            replace(one, rows=one.rows if place == 0 else []) for place, one in enumerate(made)
        ]
        for row in alone[0].rows:
            row.weight = 2.0
        found[f"one-tied{tied}"] = one_step(engine(ranks, tied), windows(alone, 1), 2)
        masked = [replace(one, rows=[replace(row, weight=0.0) for row in one.rows]) for one in made]
        empty = [replace(one, rows=[]) for one in made]
        subject = engine(ranks, tied)
        before = weights_of(subject)
        for name, these in (("masked", masked), ("empty", empty)):
            got = one_step(subject, windows(these, 1), 2)
            got["kept"] = got.pop("weights") == before
            found[f"{name}-tied{tied}"] = got
    return found


def predictions(ranks: World) -> Any:
    """Gathered logits of 1, 3 and 5 bins, in micro-batches of several sizes; no bins at all."""
    subject = engine(ranks, True)
    found: dict[str, Any] = {}
    for batch_tokens in (1, 40, 4000):
        evaluator = Evaluator(subject.model, ranks, batch_tokens)
        for count in (0, 1, 3, 5):
            bins = reference.bins(reference.segments()[:count], 1)
            got = ranks.gather([one.tolist() for one in evaluator.choice_logits(bins)])
            found[f"{count}-{batch_tokens}"] = got
    return found


def evaluation(ranks: World) -> Any:
    """Norms and weights of three clipped AdamW steps, with and without predictions between."""

    def trajectory(tied: bool, evaluate: bool) -> list[str]:
        subject = engine(ranks, tied, sgd=False)
        objective = objectives.build("p", phase())
        evaluator = Evaluator(subject.model, ranks, 40)
        told = []
        for number in range(3):
            if evaluate:
                evaluator.choice_logits(reference.bins(reference.segments(5, seed=7), 2))
            batches = subject.micro_batches(windows(reference.segments(5, seed=number), 1), 2)
            told.append(subject.step(batches, objective, 1e-2).grad_norm.hex())
        total = sum(sum(values) for values in weights_of(subject).values())
        return [*told, total.hex()]

    return {
        f"tied{tied}": [trajectory(tied, False), trajectory(tied, True)] for tied in (True, False)
    }


def after_other_objectives(ranks: World) -> Any:
    """One engine through a generative, a choice and a generative step, in bfloat16 too."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        subject = engine(ranks, False, sgd=False, dtype=dtype)
        losses = []
        for name in ("generative", "choice", "generative"):
            if name == "choice":
                made, chosen = windows(reference.segments(), 2), objectives.build("p", phase())
            else:
                made = tiny.windows(tiny.examples(name), 3)
                chosen = objectives.build("p", tiny.phase(name, 4))
            result = subject.step(subject.micro_batches(made, 1), chosen, 1e-3)
            losses.append([result.loss, result.applied])
        found[dtype] = losses
    return found


def failures(ranks: World) -> Any:
    """What every rank is told of a loss that goes wrong, on the last rank alone where it can."""
    found = {}
    made, subject = windows(reference.segments(4), 1), engine(ranks, True)
    names = ("raises", "exits", "three", "vector", "text", "detached", "nan", "negative", "slope")
    for name in names:
        before = weights_of(subject)
        kwargs = {"rank": ranks.size - 1}
        objective = objectives.build("p", phase(import_path=f"bad_losses.{name}", kwargs=kwargs))
        try:
            result = subject.step(subject.micro_batches(made, 1), objective, 0.1)
            told = {"note": result.note, "applied": result.applied}
        except RunError as error:
            told = {"error": str(error)}
        told["kept"] = weights_of(subject) == before
        # the ranks are still in step
        good = objectives.build("p", phase())
        told["next"] = subject.step(subject.micro_batches(made, 1), good, 0.1).applied
        found[name] = ranks.gather(told)
    return found


CASES: tuple[Callable[[World], Any], ...] = (
    steps,
    few_rows,
    predictions,
    evaluation,
    after_other_objectives,
    failures,
)


def main(out: str, replicate: str) -> None:
    with world(replace(tiny.ENGINE, replicate=int(replicate))) as ranks:
        found = {case.__name__: case(ranks) for case in CASES}
        if ranks.is_main:
            Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
