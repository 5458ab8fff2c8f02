"""Walks the graph: check the plan, start where its finished phases end, train the rest.

`run` is what `python -m curriculum run` calls. Checking needs no torch; a finished plan is found to
be finished without it. What ends a start before it trains is never tried again by itself.
"""

import errno
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from curriculum import store
from curriculum.checked import CheckedPlan, check, finished_record
from curriculum.config import Config
from curriculum.dry import generate_demo
from curriculum.errors import RunError, UserError
from curriculum.faults import aside, changes, failures, run_lock
from curriculum.faults.run_lock import RunLock, held
from curriculum.faults.signals import INTERRUPTED, Interrupted, StopRequest, stop_on_signal
from curriculum.lineage import base, origin
from curriculum.store.use import in_use

# what a user can mend
_OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.ESTALE, errno.ENAMETOOLONG),
}

log = logging.getLogger(__name__)


def run(config: Config) -> int:
    """Train what is not finished of a composed plan.

    0: the plan is finished; 1: a finding is an error; 75: interrupted, the same command goes on.
    Raises `UserError` and `RunError`. Every rank of a `torchrun` calls this.
    """
    with stop_on_signal() as stop:
        try:
            return _run(config, stop)
        except Interrupted:
            log.warning("stopped before training went on; the same command goes on from there")
            return INTERRUPTED
        except OSError as error:
            if error.errno not in _OF_THE_DISK:
                raise
            raise RunError(
                f"{error.filename or config.run.dir}: {error.strerror}; the same command goes on "
                "once that is mended"
            ) from error


def _run(config: Config, stop: StopRequest) -> int:
    _as_stated(config)
    with _never_twice():
        if config.profile.corpus == "demo":
            generate_demo(config)
        record = None if config.run.fresh else finished_record(config)
    if record is not None:
        if _is_main():
            print(record)
        return 0
    with ExitStack() as stack:
        with _never_twice():
            lock = _alone(config, stack) if _is_main() else None
            plans = _checked(config)
            if lock is not None:
                _begin(plans[-1], lock)
                _use_store(plans, stack)
        stop.check()
        with _never_collected():
            from curriculum.start import train

        return 0 if train(plans, stop, lock) else INTERRUPTED


def _as_stated(config: Config) -> None:
    stated, started = config.engine.world_size, int(os.environ.get("WORLD_SIZE", "1"))
    if stated is not None and stated != started:
        raise UserError(
            f"engine.world_size={stated}: this run has {started} "
            f"{'process' if started == 1 else 'processes'}; start {stated} with torchrun, or leave "
            "it out (with dry_run=true it works out memory and time for any number)"
        )


def _alone(config: Config, stack: ExitStack) -> RunLock:
    """Rank 0 holds the lock of the run directory, for all ranks."""
    lock, note = stack.enter_context(held(Path(config.run.dir), config.run.stale_seconds))
    if note is not None:
        log.warning("%s", note)
    return lock


def _checked(config: Config) -> list[CheckedPlan]:
    """The plans to train, shown. Raises `RunError` if a finding keeps one from starting."""
    plans = _plans_to_train(config)
    for plan in plans:
        if _is_main():
            print(plan.dry_run.table(), flush=True)
        if not plan.dry_run.ok:
            wrong = [f.code for f in plan.dry_run.findings if f.severity == "error"]
            raise RunError(
                f"plan {plan.composed.plan.name}: not started, {', '.join(wrong)} (see findings)"
            )
    return plans


def _plans_to_train(config: Config) -> list[CheckedPlan]:
    """The plan, and before it those that it builds on and that the store does not hold."""
    plans = [check(config)]
    while origin(plans[0].composed).kind == "plan":
        found = plans[0].lineage
        below = check((found and found.base) or base(plans[0].composed))
        if below.keys and store.finished(Path(below.ready.store.dir), below.final_key):
            break
        plans.insert(0, below)
    return plans


def _begin(plan: CheckedPlan, lock: RunLock) -> None:
    """Move what earlier starts left out of the way, if asked, and see whether this may begin."""
    lock.confirm()
    if plan.composed.run.fresh and not changes.goes_on(plan.directory, plan):
        beside = aside.start_anew(plan.directory, keep=run_lock.NAME)
        if beside is not None:
            log.warning("run.fresh=true: what lay in %s is kept in %s", plan.directory, beside)
    failures.refuse_a_loop(plan.directory, plan.composed)


def _use_store(plans: list[CheckedPlan], stack: ExitStack) -> None:
    """Have nobody delete finished phases of these plans while they run."""
    for plan in plans:
        directory = Path(plan.ready.store.dir)
        known = [*plan.keys.values(), *(plan.lineage.before if plan.lineage else ())]
        stack.enter_context(in_use(directory, plan.directory, known))
    below = plans[0].base_key
    if below is not None and store.finished(Path(plans[0].ready.store.dir), below) is None:
        raise RunError(
            f"plan.init_from={plans[0].composed.plan.init_from}: its end was deleted from "
            f"store.dir={plans[0].ready.store.dir} while this start began; start again"
        )


@contextmanager
def _never_twice() -> Iterator[None]:
    """Errors of configuration and data: the next start would meet them again."""
    try:
        yield
    except RunError as error:
        error.again = False
        raise


@contextmanager
def _never_collected() -> Iterator[None]:
    """For imports: the half a million objects that they make live as long as the process, and to
    look through them for garbage takes a third of a second each time, in the middle of training."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"
