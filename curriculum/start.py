"""One start of a run by all its ranks, from the process group to the end of the last plan.

Plans that a run builds on may be wanted by several runs at once: one of them trains such a plan,
the others wait. Rank 0 decides, holds the locks, and tells the other ranks.
"""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from curriculum import objectives, store
from curriculum.checked import CheckedPlan
from curriculum.engine.distributed import World, lost_contact, world
from curriculum.errors import RunError, UserError
from curriculum.faults import failures
from curriculum.faults.run_lock import Held, RunLock
from curriculum.faults.signals import StopRequest
from curriculum.training.run import PlanRun

_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


def train(plans: Sequence[CheckedPlan], stop: StopRequest, lock: RunLock | None) -> bool:
    """Train plans that build on one another, in order. False if a signal asked to stop.

    `lock`: that of the last plan's directory, held by rank 0. Raises `Interrupted` where a signal
    came before anything was trained.
    """
    for plan in plans:  # what cannot be imported is told before any of them trains
        objectives.build_all(plan.ready.plan)
    run, locks = plans[-1].composed.run, [lock] if lock is not None else []

    def beat() -> None:
        for one in locks:
            one.beat()

    with (
        stop.watched(run.grace_seconds, beat),
        world(plans[0].ready.engine) as ranks,
        stop.deferred(),
    ):
        stop.reach_ranks(ranks.from_main(lambda: os.urandom(8).hex()))
        return all(
            _train(plan, ranks, stop, locks, shared=plan is not plans[-1])
            for plan in _agreed(plans, ranks)
        )


def _agreed(plans: Sequence[CheckedPlan], ranks: World) -> list[CheckedPlan]:
    """The plans that rank 0 means to train; another run may have finished one meanwhile."""
    names = ranks.from_main(lambda: [plan.composed.plan.name for plan in plans])
    known = {plan.composed.plan.name: plan for plan in plans}
    if missing := [name for name in names if name not in known]:
        raise RunError(
            f"plan {missing[0]}: another run finished it while this one started; start again"
        )
    return [known[name] for name in names]


def _train(
    plan: CheckedPlan, ranks: World, stop: StopRequest, locks: list[RunLock], shared: bool
) -> bool:
    if not shared:
        return _attempt(plan, ranks, stop, locks)
    if not _alone(plan, ranks, stop, locks):
        return True
    try:
        return _attempt(plan, ranks, stop, locks)
    finally:
        if ranks.is_main:
            locks.pop().release()


def _alone(plan: CheckedPlan, ranks: World, stop: StopRequest, locks: list[RunLock]) -> bool:
    """Wait until this run may train a plan that others may train too; False if one of them has."""
    lock = RunLock(plan.directory, plan.composed.run.stale_seconds)
    said = False

    def taken() -> str | None:
        """Who holds the lock; None once this run does."""
        try:
            note = lock.acquire()
        except Held as error:
            return str(error)
        if note is not None:
            log.warning("%s", note)
        locks.append(lock)
        return None

    while True:
        finished, holder = ranks.from_main(lambda: (_is_finished(plan), taken()))
        if holder is None:
            # it may have been finished between the look at the store and the lock
            if not ranks.from_main(lambda: _is_finished(plan)):
                ranks.from_main(lambda: failures.refuse_a_loop(plan.directory, plan.composed))
                return True
            finished = True
        if finished:
            if ranks.is_main and lock in locks:
                locks.remove(lock)
                lock.release()
            return False
        if ranks.is_main and not said:
            log.info("plan %s is trained by another run: waiting (%s)", _name(plan), holder)
            said = True
        ranks.stop_together(stop)
        time.sleep(_POLL_SECONDS)


def _is_finished(plan: CheckedPlan) -> bool:
    return store.finished(Path(plan.ready.store.dir), plan.final_key) is not None


def _attempt(plan: CheckedPlan, ranks: World, stop: StopRequest, locks: list[RunLock]) -> bool:
    """Train one plan; a failure while it trains is written down.

    An error before the first step is one of configuration or data, unless it is nobody's: nothing
    is gained by starting again.
    """
    token = ranks.from_main(lambda: locks[-1].holder.token if locks else "")
    run: PlanRun | None = None
    try:
        run = PlanRun(plan, ranks, stop)
        return run.run()
    except UserError:
        raise
    except Exception as error:
        trained = run is not None and run.step > run.start.step
        if isinstance(error, RunError) and not trained:
            error.again = False
            raise
        if lost_contact(error):
            raise
        step, phase = (0, None) if run is None else (run.step, run.phase)
        failures.record(plan.directory, plan.composed, error, token, phase, step)
        raise


def _name(plan: CheckedPlan) -> str:
    return plan.composed.plan.name
