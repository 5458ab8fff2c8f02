"""`budget.scale`: one plan at several sizes.

Scale multiplies what the composed plan says, overrides included; everything downstream of
`scaled` sees plain numbers and a scale of 1.
"""

from dataclasses import replace
from fractions import Fraction
from math import floor

from curriculum.config import ChoiceEval, Config, Phase, Scale, Schedule


def scaled(config: Config) -> Config:
    """Apply `budget.scale` to phases, warm-up, decay and the checkpoint interval (a new object).

    Rounded half up, at least 1; a warm-up or decay of 0 stays 0.
    """
    scale = config.budget.scale
    phases = {name: _phase(phase, scale) for name, phase in config.plan.phases.items()}
    saves = config.checkpoint
    return replace(
        config,
        plan=replace(config.plan, phases=phases),
        schedule=_schedule(config.schedule, scale),
        checkpoint=replace(
            saves,
            every_steps=_optional(saves.every_steps, scale.steps),
            keep_every=_optional(saves.keep_every, scale.steps),
        ),
        budget=replace(config.budget, scale=Scale(steps=1.0, batch_size=1.0, seq_len=1.0)),
        choice_eval=_choice_eval(config.choice_eval, scale),
    )


def times(value: int, factor: float) -> int:
    """`value * factor` in decimal arithmetic, rounded half up, at least 1 (0 stays 0)."""
    if value == 0:
        return 0
    return max(1, floor(value * Fraction(repr(factor)) + Fraction(1, 2)))


def shown(value: int, factor: float) -> str:
    """`1800 x 0.1 = 180`, or `1800` where the factor is 1."""
    return f"{value}" if factor == 1 else f"{value} x {factor:g} = {times(value, factor)}"


def phase_steps(phase: Phase) -> int | None:
    """The steps of a phase as far as the plan alone says: `steps`, else the cap `max_steps`.

    A merge takes none.
    """
    if phase.is_merge:
        return 0
    return phase.steps if phase.steps is not None else phase.max_steps


def _phase(phase: Phase, scale: Scale) -> Phase:
    micro = phase.micro_batch_size
    batch_size = times(phase.batch_size, scale.batch_size)
    return replace(
        phase,
        steps=_optional(phase.steps, scale.steps),
        max_steps=_optional(phase.max_steps, scale.steps),
        batch_size=batch_size,
        micro_batch_size=None if micro is None else min(micro, batch_size),
        seq_len=times(phase.seq_len, scale.seq_len),
        schedule=None if phase.schedule is None else _schedule(phase.schedule, scale),
        choice_eval=_choice_eval(phase.choice_eval, scale),
    )


def _choice_eval(settings: ChoiceEval | None, scale: Scale) -> ChoiceEval | None:
    if settings is None:
        return None
    return replace(settings, interval=_optional(settings.interval, scale.steps))


def _schedule(schedule: Schedule, scale: Scale) -> Schedule:
    return replace(
        schedule,
        warmup_steps=times(schedule.warmup_steps, scale.steps),
        decay_steps=times(schedule.decay_steps, scale.steps),
    )


def _optional(value: int | None, factor: float) -> int | None:
    return None if value is None else times(value, factor)
