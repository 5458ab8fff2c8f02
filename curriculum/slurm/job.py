"""A run as a job of Slurm: the same command, started by `srun` once for every rank.

One task a rank, without `torchrun` in between: a signal of Slurm reaches every rank, a rank may
save for as long as Slurm lets it, and its exit code tells "stopped, goes on later" from a failure.
The script is written and handed to sbatch by submitit, on which Hydra's plugin is built.

What the command would refuse is refused here, before the job waits in a queue.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError, JobPaths

from curriculum.config import Config
from curriculum.dry import dry_run, with_finished
from curriculum.errors import RunError, UserError
from curriculum.faults.launcher import NO_RESTART
from curriculum.faults.signals import INTERRUPTED
from curriculum.search_path import config_dir

# what describes how a run is launched, and not the run
_OF_THE_LAUNCHER = ("hydra.launcher", "hydra/launcher", "hydra.mode", "hydra.sweep")
_NOT_OF_SBATCH = ("_target_", "submitit_folder", "max_num_timeout", "max_restarts")

# srun kills all ranks when one fails, so that its own code says nothing: the first rank to fail
# leaves its code. A rank that was stopped has not failed, and rank 0 may finish what it has to say.
# bash gets the signals of its rank, and outlives them.
_RANK = """\
trap : TERM
"$@"
code=$?
if [ $code -eq {stopped} ]; then touch "$CURRICULUM_STOPPED"; exit 0; fi
if [ $code -ne 0 ]; then
  [ -e "$CURRICULUM_FAILED" ] || echo $code > "$CURRICULUM_FAILED"
  [ "$SLURM_PROCID" = 0 ] || sleep 3
fi
exit $code"""

_SCRIPT = """\
mkdir -p {folder}
export CURRICULUM_STOPPED={folder}/stopped CURRICULUM_FAILED={folder}/failed
export {no_restart}={folder}/no_restart
for start in $(seq 0 {max_restarts}); do
  rm -f "$CURRICULUM_STOPPED" "$CURRICULUM_FAILED" "${no_restart}"
  {srun}
  code=$?
  if [ -s "$CURRICULUM_FAILED" ]; then code=$(cat "$CURRICULUM_FAILED"); fi
  if [ -e "$CURRICULUM_STOPPED" ]; then code={stopped}; break; fi
  # done, or an error that the next start would meet again
  if [ $code -eq 0 ] || [ -e "${no_restart}" ]; then break; fi
done
if [ $code -eq {stopped} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_requeues} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code"""


class CommandExecutor(SlurmExecutor):
    """Submits a shell text, where submitit submits a pickled function."""

    def submit_text(self, text: str, options: dict[str, Any]) -> str:
        """The job's id. `options`: by submitit's names or those of sbatch, null for none."""
        given = {name: value for name, value in options.items() if value is not None}
        self.update_parameters(**self._convert_parameters(given))
        JobPaths.get_first_id_independent_folder(self.folder).mkdir(parents=True, exist_ok=True)
        return self._submit_command(text).job_id


def submit(config: Config, hydra: DictConfig) -> int:
    """Submit a run `with_ranks`; 0. Raises `UserError` and `RunError`.

    `hydra`: Hydra's own part of what was composed.
    """
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise UserError(
                f"hydra/launcher=slurm: {program} is not on PATH; submit from a machine of the "
                "cluster"
            )
    _refuse_errors(config)
    options = _options(hydra)
    folder = Path(options["submitit_folder"]).absolute()
    text = _script(folder, options, _words(config, hydra))
    known = {key: options[key] for key in options if key not in _NOT_OF_SBATCH}
    try:
        job = CommandExecutor(folder).submit_text(text, {**known, "use_srun": False})
    except OSError as error:
        raise RunError(f"hydra.launcher.submitit_folder={folder}: {error.strerror}") from None
    except (FailedJobError, FailedSubmissionError) as error:
        said = " ".join(str(error).split())
        raise RunError(f"sbatch did not take the job: {said or 'it gave no reason'}") from None
    log = Path(str(folder).replace("%j", job)) / f"{job}_0_log.out"
    ranks = f"{config.engine.world_size} ranks on {options['nodes']} nodes"
    print(f"job {job}: {ranks}, run {config.run.dir}\nlog: {log}")
    return 0


def with_ranks(config: Config, hydra: DictConfig) -> Config:
    """With the number of ranks that the job will have, for which a dry run works out memory.

    Raises `UserError` if that is not what the configuration states or can be trained on.
    """
    options, engine = _options(hydra), config.engine
    nodes, tasks = options["nodes"], options["tasks_per_node"]
    if engine.world_size not in (None, nodes * tasks):
        raise UserError(
            f"engine.world_size={engine.world_size}: the job has {nodes * tasks} ranks ({nodes} "
            f"nodes x {tasks}); leave it out"
        )
    if nodes * tasks % engine.replicate:
        raise UserError(
            f"engine.replicate={engine.replicate}: must divide the number of ranks ({nodes} nodes "
            f"x {tasks})"
        )
    return replace(config, engine=replace(engine, world_size=nodes * tasks))


def _refuse_errors(config: Config) -> None:
    """Show the plan. Raises `RunError` if a finding is an error."""
    result = with_finished(dry_run(config))
    print(result.table(), flush=True)
    if not result.ok:
        wrong = [finding.code for finding in result.findings if finding.severity == "error"]
        raise RunError(f"plan {config.plan.name}: not submitted, {', '.join(wrong)} (see findings)")


def _options(hydra: DictConfig) -> dict[str, Any]:
    """The launcher's values; as many ranks as GPUs, where GPUs are asked for by the node."""
    options: Any = OmegaConf.to_container(hydra.launcher, resolve=True)
    tasks, gpus = options["tasks_per_node"], options["gpus_per_node"]
    if gpus is not None and tasks not in (1, gpus):
        raise UserError(
            f"hydra.launcher.tasks_per_node={tasks}: must be gpus_per_node={gpus}, one rank a GPU; "
            "leave it out"
        )
    return options if gpus is None else {**options, "tasks_per_node": gpus}


def _words(config: Config, hydra: DictConfig) -> list[str]:
    """The command of one rank: that of the user, less the launcher."""
    words = [sys.executable, "-u", "-m", "curriculum", "run"]
    if (own := config_dir()) is not None:
        words += ["--config-dir", str(own)]
    given = [*hydra.overrides.hydra, *hydra.overrides.task]
    words += [word for word in given if not word.lstrip("+~").startswith(_OF_THE_LAUNCHER)]
    if hydra.mode == RunMode.MULTIRUN:  # each job has a directory of its own
        escaped = config.run.dir.replace("\\", "\\\\").replace('"', '\\"')
        words.append(f'++run.dir="{escaped}"')
    return words


def _script(folder: Path, options: dict[str, Any], words: Sequence[str]) -> str:
    srun = ["srun", "--unbuffered", "--kill-on-bad-exit=1"]
    if options["cpus_per_task"] is not None:  # which srun does not take over from sbatch
        srun.append(f"--cpus-per-task={options['cpus_per_task']}")
    rank, parts = _RANK.format(stopped=INTERRUPTED), str(folder).split("%j")
    return _SCRIPT.format(
        folder='"$SLURM_JOB_ID"'.join(part and shlex.quote(part) for part in parts),
        no_restart=NO_RESTART,
        srun=shlex.join([*srun, "bash", "-c", rank, "rank", *words]),
        stopped=INTERRUPTED,
        max_restarts=options["max_restarts"],
        max_requeues=options["max_num_timeout"],
    )
