"""`plan/decay-on-replay`: the final decay settles the model on the data it sees then."""

from collections.abc import Iterator

from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def decay_on_replay(context: CheckContext) -> Iterator[Finding]:
    """Warning if the rate decays over the plan and a last phase is replay."""
    for last in context.closing:
        schedule = context.config.plan.phases[last.name].schedule or context.config.schedule
        falls = schedule.kind == "cosine" or (schedule.kind == "wsd" and schedule.decay_steps > 0)
        if last.role != "replay" or not falls or schedule.min_ratio == 1:
            continue
        rates = "" if last.lr_end is None else f" from {last.lr_start:.2g} to {last.lr_end:.2g}"
        yield Finding(
            "plan/decay-on-replay",
            "warning",
            last.name,
            f"the learning rate falls{rates} while the model trains on replay phase {last.name}",
            "end on a generative phase, or use schedule=constant",
        )
