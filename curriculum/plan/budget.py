"""What a plan will cost, phase by phase, in every unit.

Nominal tokens, steps and rates follow from the plan alone. Forward tokens are exact where the
data is prepared; before that they are the upper bound `steps x batch_size x seq_len` (for
retrieval times the texts of a group), marked by `forward_exact`. FLOPs are an upper bound in the
length of attention, and in the rows of the head where trained tokens are unknown.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from curriculum.config import Config, Engine, Phase
from curriculum.errors import UserError
from curriculum.plan.flops import ModelSize, model_size, training_flops
from curriculum.plan.graph import order
from curriculum.plan.scale import phase_steps
from curriculum.plan.schedule import learning_rate

UNITS = {
    "nominal": "nominal_tokens",
    "forward": "forward_tokens",
    "flops": "flops",
    "steps": "steps",
}


@dataclass(frozen=True)
class WindowCount:
    """Prepared windows of one phase. `exact`: the source holds no more than `available`.

    `forward_tokens` and `trained_tokens` are totals over the windows that the phase uses, epochs
    included; None if too few are prepared to tell.
    """

    available: int
    exact: bool
    forward_tokens: int | None
    trained_tokens: int | None


@dataclass(frozen=True)
class PhaseBudget:
    """One row of the dry run. What is unknown is None; `share` is by unit, in 0..1.

    A merge takes no steps and has neither batch nor sequence length nor rates: None.
    """

    name: str
    role: str
    objective: str
    steps: int | None
    batch_size: int | None
    seq_len: int | None
    nominal_tokens: int | None
    forward_tokens: int | None
    forward_exact: bool
    windows_needed: int | None
    windows_available: int | None
    windows_exact: bool
    flops: int | None
    lr_start: float | None
    lr_end: float | None
    share: dict[str, float | None]
    cached: bool


@dataclass(frozen=True)
class Budget:
    """Rows in the order of training, and their totals (overall, by role, by objective, and what is
    left to run)."""

    phases: list[PhaseBudget]
    totals: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """`{"phases": [...], "totals": {...}}` of plain values."""
        return {"phases": [asdict(phase) for phase in self.phases], "totals": self.totals}

    def with_cached(self, cached: Collection[str]) -> "Budget":
        """The same with these phases marked as finished; `totals["left"]` sums up the others."""
        rows = [replace(row, cached=row.name in cached) for row in self.phases]
        waiting = [row for row in rows if not row.cached]
        left = _sums(waiting)
        left = {"phases": len(waiting), **left, "share": _shares(left, _sums(rows))}
        return Budget(rows, {**self.totals, "left": left})


def one_pass(phase: Phase) -> bool:
    """True for a choice phase that no one gave a length: it sees each of its bins once."""
    return phase.task == "choice" and phase.steps is None and phase.epochs is None


def with_known_length(phase: Phase, windows: int) -> Phase:
    """A phase measured by its `windows` windows, with its exact number of steps instead.

    `epochs` times the windows, divided by `batch_size` and rounded up, at most `max_steps`; the
    last step takes its missing windows from the next epoch. Its data may then be repeated. A phase
    of `one_pass` takes the steps that its windows fill, and leaves the rest.
    """
    if one_pass(phase):
        steps = max(1, windows // phase.batch_size)
        return replace(phase, steps=min(steps, phase.max_steps or steps), max_steps=None)
    if phase.steps is not None or phase.epochs is None:
        return phase
    steps = max(1, ceil(phase.epochs * windows / phase.batch_size))
    if phase.max_steps is not None:
        steps = min(steps, phase.max_steps)
    data = replace(phase.data, on_short="repeat")
    return replace(phase, steps=steps, max_steps=None, epochs=None, data=data)


def settled(config: Config, counts: Mapping[str, WindowCount | None]) -> Config:
    """Every phase `with_known_length` whose number of windows is known exactly."""
    phases = {}
    for name, phase in config.plan.phases.items():
        count = counts.get(name)
        known = count is not None and count.exact
        phases[name] = with_known_length(phase, count.available) if known else phase
    return replace(config, plan=replace(config.plan, phases=phases))


def plan_budget(
    config: Config,
    counts: Mapping[str, WindowCount | None],
    cached: Collection[str] = (),
) -> Budget:
    """Budget of a scaled configuration. `cached` names phases whose result is in the store."""
    config = settled(config, counts)
    size = model_size(config.model)
    rows = [_row(config, name, counts.get(name), size) for name in order(config.plan)]
    overall = _sums(rows)
    rows = [replace(row, share=_shares(_sums([row]), overall)) for row in rows]
    totals = {
        "phases": len(rows),
        **overall,
        "by_role": _grouped(rows, "role", overall),
        "by_objective": _grouped(rows, "objective", overall),
    }
    return Budget(rows, totals).with_cached(cached)


def _row(
    config: Config, name: str, count: WindowCount | None, size: ModelSize | None
) -> PhaseBudget:
    phase = config.plan.phases[name]
    if phase.is_merge:
        return _merge_row(name, phase)
    steps = phase_steps(phase)
    windows = None if steps is None else steps * phase.batch_size
    nominal = None if windows is None else windows * phase.seq_len
    forward = None if nominal is None else nominal * texts_per_window(phase)
    exact = count is not None and count.forward_tokens is not None
    if exact:
        forward = count.forward_tokens
    head_rows = _head_rows(phase, forward, count)
    return PhaseBudget(
        name=name,
        role=phase.role,
        objective=phase.objective_name,
        steps=steps,
        batch_size=phase.batch_size,
        seq_len=phase.seq_len,
        nominal_tokens=nominal,
        forward_tokens=forward,
        forward_exact=exact,
        windows_needed=windows,
        windows_available=None if count is None else count.available,
        windows_exact=count is not None and count.exact,
        flops=(
            None if forward is None else training_flops(size, forward, head_rows, phase.seq_len)
        ),
        lr_start=_rate(config, name, 0),
        lr_end=None if steps is None else _rate(config, name, steps - 1),
        share={},
        cached=False,
    )


def _merge_row(name: str, phase: Phase) -> PhaseBudget:
    """Averaging weights takes no steps and no tokens."""
    return PhaseBudget(
        name=name,
        role=phase.role,
        objective=phase.objective_name,
        steps=0,
        batch_size=None,
        seq_len=None,
        nominal_tokens=0,
        forward_tokens=0,
        forward_exact=True,
        windows_needed=0,
        windows_available=None,
        windows_exact=False,
        flops=0,
        lr_start=None,
        lr_end=None,
        share={},
        cached=False,
    )


def texts_per_window(phase: Phase) -> int:
    """Texts of one window, each at most `seq_len`: a retrieval group is a query and documents."""
    return 1 if phase.retrieval is None else 1 + phase.retrieval.documents


def micro_batch_size(phase: Phase, engine: Engine) -> int:
    """Windows of a micro-batch: as said, or as many as `engine.micro_batch_tokens` holds."""
    if phase.micro_batch_size is not None:
        return phase.micro_batch_size
    return max(1, engine.micro_batch_tokens // (phase.seq_len * texts_per_window(phase)))


def _head_rows(phase: Phase, forward: int | None, count: WindowCount | None) -> int:
    if phase.objective_name in ("retrieval", "choice"):  # no row meets the whole vocabulary
        return 0
    if count is not None and count.trained_tokens is not None:
        return count.trained_tokens
    return forward or 0


def _rate(config: Config, phase: str, step: int) -> float | None:
    """None where the rate depends on a length that is not known yet."""
    try:
        return learning_rate(config, phase, step)
    except UserError:
        return None


def _sums(rows: Sequence[PhaseBudget]) -> dict[str, int | None]:
    """Totals by column; None as soon as one phase is unknown."""
    table = [[getattr(row, column) for row in rows] for column in _COLUMNS]
    return {
        column: None if None in values else sum(values)
        for column, values in zip(_COLUMNS, table, strict=True)
    }


_COLUMNS = ("steps", "nominal_tokens", "forward_tokens", "flops")


def _shares(
    part: Mapping[str, int | None], whole: Mapping[str, int | None]
) -> dict[str, float | None]:
    return {
        unit: None if part[column] is None or not whole[column] else part[column] / whole[column]
        for unit, column in UNITS.items()
    }


def _grouped(
    rows: list[PhaseBudget], by: str, overall: Mapping[str, int | None]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(getattr(row, by) for row in rows):
        sums = _sums([row for row in rows if getattr(row, by) == key])
        groups[key] = {**sums, "share": _shares(sums, overall)}
    return groups
