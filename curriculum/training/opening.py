"""The engine of a run, with the weights and moments that the run starts or goes on from."""

from dataclasses import dataclass
from pathlib import Path

from curriculum.checked import CheckedPlan
from curriculum.engine import checkpoint
from curriculum.engine.distributed import World
from curriculum.engine.model import build_lm, check_vocabulary, wrap
from curriculum.engine.step import Engine
from curriculum.errors import RunError
from curriculum.lineage import Origin, origin
from curriculum.resume import Start, agreed_start


@dataclass(frozen=True)
class Opening:
    """An engine, and the place in the plan where it stands.

    `held`: the directory whose weights and moments the engine has, None for initial weights.
    `refused`: directories that cannot be used, with the reason.
    """

    engine: Engine
    start: Start
    held: Path | None
    refused: dict[Path, str]


def open_engine(plan: CheckedPlan, ranks: World, tokens: int) -> Opening:
    """Build the model and load what the run goes on from. Every rank calls this.

    A checkpoint that turns out not to fit is refused, and the next best place taken. `tokens`: the
    size of the tokenizer. Raises `UserError` if the model has no row for each of them.
    """
    refused: dict[Path, str] = {}
    while True:
        start = agreed_start(plan, ranks, refused)
        engine = _initial_engine(plan, ranks, start, tokens)
        held: Path | None = None
        try:
            for held in reversed(start.loads):
                checkpoint.load(held, engine.model, engine.optimizer, checked=True)
            return Opening(engine, start, held, refused)
        except RunError as error:
            assert held is not None
            refused[held] = str(error).removeprefix(f"{held}: ")


def _initial_engine(plan: CheckedPlan, ranks: World, start: Start, tokens: int) -> Engine:
    """The model as the plan starts, or empty where the run goes on from somewhere else."""
    config, begin = plan.ready, origin(plan.composed)
    pretrained = begin.path if begin.kind == "pretrained" else None
    weights = None if start.loads else _initial_checkpoint(plan, begin)
    empty = weights is not None or bool(start.loads)
    lm = build_lm(config.model, config.seed, pretrained, empty=empty)
    check_vocabulary(lm, tokens)
    engine = Engine(wrap(lm, config.engine, ranks), ranks, config.engine, config.optim)
    if weights is not None:
        checkpoint.load(weights, engine.model, None)
    return engine


def _initial_checkpoint(plan: CheckedPlan, begin: Origin) -> Path | None:
    if begin.kind == "checkpoint":
        return begin.path
    if begin.kind == "plan" and plan.base_key is not None:
        return Path(plan.ready.store.dir) / plan.base_key
    return None
