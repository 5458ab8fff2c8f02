"""Walks the graph: check the plan, start where its finished phases end, train the rest.

`run` is what `python -m curriculum run` calls. Checking needs no torch; a finished plan is found to
be finished without it.
"""

import os
from pathlib import Path

from curriculum import store
from curriculum.checked import CheckedPlan, check, finished_record
from curriculum.config import Config
from curriculum.dry import generate_demo
from curriculum.errors import RunError
from curriculum.lineage import base, origin

INTERRUPTED = 75


def run(config: Config) -> int:
    """Train what is not finished of a composed plan.

    0: the plan is finished; 1: a finding is an error; 75: interrupted, the same command goes on.
    Raises `UserError` and `RunError`. Every rank of a `torchrun` calls this.
    """
    if config.profile.corpus == "demo":
        generate_demo(config)
    if (record := finished_record(config)) is not None:
        if _is_main():
            print(record)
        return 0
    plans = _plans_to_train(config)
    for plan in plans:
        if _is_main():
            print(plan.dry_run.table(), flush=True)
        if not plan.dry_run.ok:
            wrong = [f.code for f in plan.dry_run.findings if f.severity == "error"]
            raise RunError(
                f"plan {plan.composed.plan.name}: not started, {', '.join(wrong)} (see findings)"
            )

    from curriculum.trainer import train

    return 0 if train(plans) else INTERRUPTED


def _plans_to_train(config: Config) -> list[CheckedPlan]:
    """The plan, and before it those that it builds on and that the store does not hold."""
    plans = [check(config)]
    while origin(plans[0].composed).kind == "plan":
        below = check(base(plans[0].composed))
        if below.keys and store.finished(Path(below.ready.store.dir), below.final_key):
            break
        plans.insert(0, below)
    return plans


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"
