"""`hydra/launcher=slurm`, where Hydra looks for plugins: in this package, which has many owners.

A job of a multirun is what a single run is, `curriculum.cli` with a composed configuration, and it
is there that a run with this launcher is sent to Slurm instead of trained. So the launcher itself
only goes through the jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, run_job
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

try:
    from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf
except ImportError:
    SlurmQueueConf = None  # the extra is not installed; whoever chooses this launcher is told


class SlurmLauncher(Launcher):
    """Hands every job to the application, in this process, one after the other."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        return [
            self._job(list(overrides), number)
            for number, overrides in enumerate(job_overrides, initial_job_idx)
        ]

    def _job(self, overrides: list[str], number: int) -> JobReturn:
        config = self.context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return run_job(
            hydra_context=self.context,
            task_function=self.task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


if SlurmQueueConf is not None:

    @dataclass
    class SlurmSchema(SlurmQueueConf):
        """Types of `conf/hydra/launcher/slurm.yaml`, where the values are."""

        _target_: str = f"{__name__}.{SlurmLauncher.__name__}"
        max_restarts: int = 0

    ConfigStore.instance().store(
        "curriculum_slurm_schema", SlurmSchema, group="hydra/launcher", provider="curriculum"
    )
