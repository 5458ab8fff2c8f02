"""The learning rate as a pure function of the configuration and the place in the plan.

Three curves, each times `optim.lr` and the phase's `lr_scale`:

- `wsd`: linear warm-up, plateau, linear decay to `min_ratio` (warmup-stable-decay, Hu et al.,
  2024, "MiniCPM"). Over the plan, warm-up counts from the plan's first step and decay lies inside
  the last phase, so no rate depends on a later phase. Where the plan ends by merging branches,
  each branch decays in its own last phase.
- `cosine`: linear warm-up, then half a cosine down to `min_ratio` (Loshchilov and Hutter, 2017).
- `constant`: linear warm-up, then 1.

`scope: phase` runs the curve from start to end within each phase. The first update of a warm-up
has the rate 1/warmup_steps, not 0; a falling curve would reach `min_ratio` one update after the
last.
"""

from collections.abc import Callable
from math import cos, pi

from curriculum.config import Config, Schedule
from curriculum.errors import UserError
from curriculum.plan.graph import ancestors, closing, order
from curriculum.plan.scale import phase_steps


def learning_rate(config: Config, phase: str, phase_step: int) -> float:
    """Rate of update number `phase_step` (0-based) of `phase`. `config` is already scaled.

    Raises `UserError` where the rate depends on the length of a phase that has none.
    """
    return learning_rates(config, phase)(phase_step)


def learning_rates(config: Config, phase: str) -> Callable[[int], float]:
    """`learning_rate` of one phase as a function of its step, the place in the plan worked out."""
    here = config.plan.phases[phase]
    schedule = here.schedule or config.schedule
    offset, end, room = _extent(config, schedule, phase)
    peak = config.optim.lr * here.lr_scale
    return lambda phase_step: peak * _curve(schedule, offset + phase_step, end, room)


def _extent(config: Config, schedule: Schedule, phase: str) -> tuple[int, int | None, int | None]:
    """Steps of the curve before the phase, its end, and the room for its decay (see `_curve`)."""
    length = phase_steps(config.plan.phases[phase])
    if schedule.scope == "phase":
        end = _known(length, phase) if schedule.kind != "constant" else None
        return 0, end, end
    if schedule.kind == "cosine":
        last = order(config.plan)[-1]
        final = _known(phase_steps(config.plan.phases[last]), last)
        total = _steps_before(config, last, needed=True) + final
        return _steps_before(config, phase, needed=True), total, total
    before = _steps_before(config, phase, needed=schedule.warmup_steps > 0)
    decays = schedule.kind != "constant" and schedule.decay_steps > 0
    if not decays or phase not in closing(config.plan):
        return before, None, None
    return before, before + _known(length, phase), length


def _curve(schedule: Schedule, place: int, end: int | None, room: int | None) -> float:
    """Ratio at step `place` of a curve that ends before step `end`.

    `room`: steps before `end` that a decay may take; the decay is cut to them. Without an end the
    curve never falls.
    """
    warmup = schedule.warmup_steps
    rising = min(1.0, (place + 1) / warmup) if warmup > 0 else 1.0
    if end is None or schedule.kind == "constant":
        return rising
    low = schedule.min_ratio
    if schedule.kind == "cosine":
        progress = max(0, place - warmup) / max(1, end - warmup)
        falling = low + (1 - low) * 0.5 * (1 + cos(pi * min(1.0, progress)))
    else:
        decay = min(schedule.decay_steps, room if room is not None else end)
        begun = max(0, place - (end - decay))
        falling = 1 - (1 - low) * begun / decay if decay else 1.0
    return min(rising, falling)


def _steps_before(config: Config, phase: str, needed: bool) -> int:
    """Steps of the plan before the first of `phase`; 0 where nothing depends on them."""
    if not needed:
        return 0
    before = ancestors(config.plan, phase)
    return sum(_known(phase_steps(config.plan.phases[name]), name) for name in before)


def _known(steps: int | None, phase: str) -> int:
    if steps is None:
        raise UserError(
            f"plan.phases.{phase}: its length is not known yet and the schedule depends on it; "
            "give steps or max_steps"
        )
    return steps
