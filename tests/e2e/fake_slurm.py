"""What a job needs of Slurm, on this machine: `sbatch`, `srun` and `scontrol` as programs, and
`Slurm`, which runs what was submitted as slurmctld and slurmd would.

Nodes are names of this machine. A signal for the job goes to all processes of its step and not to
the script, as `sbatch --signal` without `B:` does; srun kills all tasks when one fails, and returns
the highest of their codes.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PROGRAMS = ("sbatch", "srun", "scontrol")


class Slurm:
    """The cluster of one test: its programs, and the jobs it was given."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin = root, root / "bin"
        self.batches: list[Batch] = []
        self.bin.mkdir(parents=True)
        for name in PROGRAMS:
            program = self.bin / name
            program.write_text(
                f'#!/bin/sh\nFAKE_SLURM={root} exec {sys.executable} {__file__} {name} "$@"\n'
            )
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def script(self, job: int) -> str:
        return (self.root / f"{job}.sh").read_text()

    def options(self, job: int) -> dict[str, str]:
        """What the script asks for: `#SBATCH --name=value`, a flag as ''."""
        found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", self.script(job), re.MULTILINE)
        return {name: "".join(shlex.split(value)) for name, value in found}

    def start(self, job: int, cwd: Path, restarts: int, **env: str) -> "Batch":
        """Start a job's script, as on the first of its nodes."""
        options = self.options(job)
        nodes, tasks = int(options["nodes"]), int(options["ntasks-per-node"])
        log = Path(options["output"].replace("%j", str(job)))
        place = {
            "SLURM_JOB_ID": str(job),
            "SLURM_NTASKS": str(nodes * tasks),
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_PROCID": "0",  # the script is a task of its own
            "FAKE_TASKS": str(tasks),
        }
        if restarts:
            place["SLURM_RESTART_COUNT"] = str(restarts)
        with log.open("a") as said:
            process = subprocess.Popen(
                ["bash", str(self.root / f"{job}.sh")],
                cwd=cwd,
                env={**os.environ, **self.environment, **place, **env},
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.batches.append(Batch(self, job, log, process))
        return self.batches[-1]

    def end(self) -> None:
        """Nothing outlives the cluster."""
        for batch in self.batches:
            if batch.process.poll() is None:
                batch.process.kill()
                batch.signal(signal.SIGKILL)


class Batch:
    """A job's script that runs."""

    def __init__(self, slurm: Slurm, job: int, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.slurm, self.job, self.log, self.process = slurm, job, log, process

    def tasks(self) -> list[int]:
        """The tasks of the step that was started last, in the order of ranks: process groups."""
        file = self.slurm.root / f"{self.job}.tasks"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def signal(self, number: int) -> None:
        for pid in self.tasks():
            with suppress(ProcessLookupError):
                os.killpg(pid, number)

    def requeued(self) -> bool:
        """True once for every `scontrol requeue`."""
        file = self.slurm.root / f"{self.job}.requeue"
        found = file.exists()
        file.unlink(missing_ok=True)
        return found

    def text(self) -> str:
        return self.log.read_text()


def sbatch(root: Path, words: list[str]) -> int:
    if (root / "refuses").exists():
        print("sbatch: error: invalid partition specified: gpu", file=sys.stderr)
        return 1
    job = 100 + len(list(root.glob("*.sh")))
    (root / f"{job}.sh").write_text(Path(words[-1]).read_text())
    print(f"Submitted batch job {job}")
    return 0


def scontrol(root: Path, words: list[str]) -> int:
    assert words[0] == "requeue", words
    (root / f"{words[1]}.requeue").touch()
    return 0


def srun(root: Path, words: list[str]) -> int:
    first = next(n for n, word in enumerate(words) if not word.startswith("--"))
    assert "--kill-on-bad-exit=1" in words[:first], "a site may have another default"
    job, total = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_NTASKS"])
    nodes, each = int(os.environ["SLURM_JOB_NUM_NODES"]), int(os.environ["FAKE_TASKS"])
    step = len(list(root.glob(f"{job}.step*")))
    (root / f"{job}.step{step}").touch()
    shared = {
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_STEP_TASKS_PER_NODE": str(each) if nodes == 1 else f"{each}(x{nodes})",
        "SLURM_STEP_NODELIST": "localhost" + ",other[3-9]" * (nodes > 1),
    }
    tasks = [
        subprocess.Popen(
            words[first:],
            env=os.environ
            | shared
            | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task % each)}
            | {"SLURM_NODEID": str(task // each)},
            start_new_session=True,
        )
        for task in range(total)
    ]
    partial = root / f"{job}.tasks.tmp"
    partial.write_text(" ".join(str(task.pid) for task in tasks))
    partial.rename(root / f"{job}.tasks")
    while None in (codes := [task.poll() for task in tasks]):
        if any(codes):
            for task in tasks:
                with suppress(ProcessLookupError):
                    os.killpg(task.pid, signal.SIGKILL)
        time.sleep(0.05)
    return max(128 - code if code < 0 else code for code in codes)


if __name__ == "__main__":
    programs = {"sbatch": sbatch, "srun": srun, "scontrol": scontrol}
    sys.exit(programs[sys.argv[1]](Path(os.environ["FAKE_SLURM"]), sys.argv[2:]))
