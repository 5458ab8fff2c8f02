"""The command line: a table of verbs, and `run`, which is a Hydra application.

Results go to stdout, logs to stderr. What a user can cause ends in one line and an exit code: 0
fine, 1 a finding or a failed run, 2 a wrong command, 75 interrupted and resumable.
"""

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from curriculum.errors import RunError, UserError
from curriculum.faults import launcher
from curriculum.faults.signals import INTERRUPTED, Interrupted, stop_on_signal
from curriculum.slurm import ranks
from curriculum.verbs import call, listed

if TYPE_CHECKING:
    from omegaconf import DictConfig

VERBS = {
    "run": ("curriculum.cli:run", "check, budget, train and resume a plan"),
    "ls": ("curriculum.library:ls", "list plans, cards and groups"),
    "cp": ("curriculum.library:cp", "copy a plan with its cards, to edit it"),
    "data": ("curriculum.data_verb:main", "audit a plan's data, look at it, mend it"),
    "eval": ("curriculum.evaluate:main", "run a plan's probes on a run or a model"),
    "export": ("curriculum.export:main", "write a run's model as a Hugging Face directory"),
    "store": ("curriculum.store.verb:main", "finished phases: list, compare with a plan, delete"),
    "dashboard": ("curriculum.tracking.dashboard:main", "open the tracker's web page"),
}
_SLURM = "hydra_plugins.curriculum_slurm.SlurmLauncher"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code."""
    ranks.adopt()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else UserError.exit_code
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a user's own losses and scorers, however we were started
    try:
        return call(VERBS, arguments, "verb")
    except (UserError, RunError) as error:
        return _report(error)
    except Interrupted:
        print("stopped before anything was started", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our stdout has gone (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run(argv: Sequence[str]) -> int:
    """`run +plan=NAME [group=NAME] [key=value] [--multirun] [--config-dir DIR] [--cfg job] ...`

    The worst exit code of all jobs.
    """
    from hydra import initialize_config_dir
    from hydra import main as hydra_main
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from curriculum.compose import VERSION_BASE, explain
    from curriculum.library import groups, shipped
    from curriculum.overrides import parted, rewritten
    from curriculum.search_path import searching

    if "--info" not in argv:  # which Hydra logs to stdout by a handler of its own
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    gc.disable()  # composing builds many small objects that all live on: a fifth of its time
    config_dir, given, flags = parted("curriculum run", argv)
    with searching(config_dir), stop_on_signal():
        overrides = rewritten(given, groups(config_dir))
        codes: list[int] = []
        task, conf = _job_task(codes), str(shipped()[0])
        try:
            if flags or any("hydra.mode=" in override for override in overrides):
                with _command_line(["curriculum run", *overrides, *flags]):
                    hydra_main(conf, "config", VERSION_BASE)(task)()
            else:
                with initialize_config_dir(conf, "curriculum", VERSION_BASE):
                    _single_job(task, overrides)
        except (HydraException, OmegaConfBaseException) as error:
            raise UserError(explain(error)) from None
        except JobFailed as failure:
            codes.append(failure.code)
        finally:
            gc.enable()
    return max(codes, default=0)


def _single_job(task: "Callable[[DictConfig], None]", overrides: list[str]) -> None:
    """What `hydra.main` does without flags, less its first composition, made to find the mode."""
    from hydra.core.global_hydra import GlobalHydra

    hydra = GlobalHydra.instance().hydra
    assert hydra is not None, "called within initialize_config_dir"
    hydra.run("config", task, [*overrides, "hydra.mode=RUN"])


class JobFailed(Exception):
    """A job of a launcher that uses other processes ended with a code that is not 0."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _job_task(codes: list[int]) -> "Callable[[DictConfig], None]":
    """Hydra's task: one job. Codes are collected here or, from another process, raised."""
    home = os.getpid()

    def task(cfg: "DictConfig") -> None:
        ranks.adopt()
        try:
            code = _job(cfg)
        except (UserError, RunError) as error:
            code = _report(error)
        codes.append(code)
        if code == INTERRUPTED:
            sys.exit(code)  # no further job of a multirun may start
        if code != 0 and os.getpid() != home:
            raise JobFailed(code)

    return task


def _job(cfg: "DictConfig") -> int:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from curriculum.compose import typed
    from curriculum.overrides import job_suffix

    hydra = HydraConfig.get()
    given = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(given, list)
    own = any("run.dir=" in override and "${" in override for override in given)
    if hydra.mode == RunMode.MULTIRUN and not own:
        cfg.run.dir = os.path.join(cfg.run.dir, job_suffix(given))
    config = typed(cfg, dict(hydra.runtime.choices))
    if hydra.launcher.get("_target_") == _SLURM:
        from curriculum.slurm.job import submit, with_ranks

        config = with_ranks(config, hydra)
        if not config.dry_run:
            return submit(config, hydra)
    if not config.dry_run:
        gc.enable()
        from curriculum.runner import run as run_plan

        return run_plan(config)
    from curriculum.dry import dry_run, with_finished

    result = with_finished(dry_run(config))
    if config.output == "json":
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
    else:
        print(result.table())
    return 0 if result.ok else RunError.exit_code


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`, and hands its errors on only with HYDRA_FULL_ERROR=1."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = arguments, "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


def _report(error: UserError | RunError) -> int:
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr, flush=True)
    if not error.again:
        launcher.no_restart()  # last: it ends this process too
    return error.exit_code


def _help() -> str:
    return (
        "python -m curriculum VERB ...\n\n"
        f"{listed(VERBS)}\n\n"
        "python -m curriculum run +plan=corrective dry_run=true   what a plan would do and cost\n"
        "python -m curriculum run +plan=corrective                train it, or continue\n"
        "python -m curriculum VERB --help                         more about a verb"
    )
