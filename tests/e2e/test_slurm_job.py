"""`hydra/launcher=slurm`: what is submitted, and what the submitted script does when it runs."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import ENVIRONMENT, curriculum
from fake_slurm import Batch, Slurm
from fault_plan import RUN, TOTAL, command, committed, rows, weights
from faults import wait_until
from omegaconf import OmegaConf

from curriculum import cli

pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs curriculum[slurm]")

PYTHON = {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"], "OMP_NUM_THREADS": "1"}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path / "slurm")
    yield cluster
    cluster.end()


@pytest.fixture
def root(laid_out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(laid_out, tmp_path / "here"))


@dataclass(frozen=True)
class Here:
    """The program, called in this process, in a directory from which jobs can be submitted."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> tuple[int, str, list[str]]:
        """Exit code, what it says on stdout, and the lines on stderr."""
        self.capsys.readouterr()
        code = cli.main(words)
        said = self.capsys.readouterr()
        return code, said.out, said.err.splitlines()

    def submit(self, *words: str) -> str:
        code, out, errors = self(*command("hydra/launcher=slurm", *words))
        assert code == 0, errors
        return out


@pytest.fixture
def here(
    slurm: Slurm, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    return Here(root, capsys)


def ranks_command(script: str) -> list[str]:
    """The words that srun gets."""
    words = shlex.split(script, comments=True)
    start = words.index("srun")
    return words[start : words.index("code=$?", start)]


def test_the_job_asks_for_what_was_given_and_runs_the_same_command(
    slurm: Slurm, here: Here
) -> None:
    own = ("seed=7", "plan.phases.talk.data.sources=['data/talk*.jsonl']")
    wanted = [
        "hydra.launcher.nodes=2",
        "hydra.launcher.gpus_per_node=4",
        "hydra.launcher.cpus_per_task=6",
        "hydra.launcher.timeout_min=90",
        "hydra.launcher.signal_delay_s=240",
        "hydra.launcher.partition=big gpus",
        "+hydra.launcher.additional_parameters.reservation=week",
    ]
    said = here.submit(*own, *wanted)
    assert f"job 100: 8 ranks on 2 nodes, run {here.root / RUN}\n" in said
    log = here.root / ".curriculum/slurm/100/100_0_log.out"
    assert said.endswith(f"log: {log}\n")
    options = slurm.options(100)
    assert options.pop("output").replace("%j", "100") == str(log)
    assert options.pop("wckey") == "submitit"
    assert options == {
        "job-name": "faults",
        "nodes": "2",
        "ntasks-per-node": "4",
        "gpus-per-node": "4",
        "cpus-per-task": "6",
        "time": "90",
        "signal": "TERM@240",
        "requeue": "",
        "partition": "big gpus",
        "reservation": "week",
        "open-mode": "append",
    }
    words = ranks_command(slurm.script(100))
    start = words.index(sys.executable)
    assert "--cpus-per-task=6" in words[:start]
    assert words[start + 1 : start + 5] == ["-u", "-m", "curriculum", "run"]
    assert not [word for word in words if "launcher" in word]
    composed_here = here(*command(*own, "--cfg", "job"))
    assert composed_here[0] == 0 and "name: faults" in composed_here[1]
    assert here(*words[start + 4 :], "--cfg", "job") == composed_here
    assert not (here.root / RUN).exists()
    checked = subprocess.run(["bash", "-n"], input=slurm.script(100), text=True, check=False)
    assert checked.returncode == 0


def test_a_multirun_is_one_job_for_each_run_in_a_directory_of_its_own(
    slurm: Slurm, here: Here
) -> None:
    said = here.submit("--multirun", "seed=1,2", "run.dir='r u/${seed}'")
    for job, seed in ((100, 1), (101, 2)):
        assert f"job {job}: 1 ranks on 1 nodes, run {here.root}/r u/{seed}\n" in said
        words = ranks_command(slurm.script(job))
        assert f"++seed={seed}" in words and "--multirun" not in words
        code, composed, _ = here(*words[words.index("run") :], "--cfg", "job", "-p", "run")
        assert code == 0
        assert OmegaConf.create(composed).dir == f"{here.root}/r u/{seed}"


def test_a_dry_run_is_for_the_ranks_of_the_job_and_submits_nothing(
    slurm: Slurm, here: Here
) -> None:
    said = here.submit("hydra.launcher.nodes=2", "hydra.launcher.gpus_per_node=2", "dry_run=true")
    assert here(*command("dry_run=true", "engine.world_size=4"))[1] == said
    assert "4 ranks" in said
    assert not list(slurm.root.glob("*.sh"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["hydra.launcher.gpus_per_node=4", "hydra.launcher.tasks_per_node=2"], 2,
         "hydra.launcher.tasks_per_node=2: must be gpus_per_node=4, one rank a GPU"),
        (["hydra.launcher.nodes=3", "engine.replicate=2"], 2,
         "engine.replicate=2: must divide the number of ranks (3 nodes x 1)"),
        (["hydra.launcher.nodes=3", "engine.world_size=2"], 2,
         "engine.world_size=2: the job has 3 ranks (3 nodes x 1)"),
        (["hydra.launcher.nodes=many"], 2, "hydra.launcher.nodes=many (Value 'many'"),
        (["optim.lr=never"], 2, "optim.lr='never'"),
        (["plan.phases.prose.role=replay"], 1, "plan faults: not submitted, plan/ends-on-replay"),
    ],
)  # fmt: skip
def test_what_would_be_refused_is_not_submitted(
    slurm: Slurm, here: Here, words: list[str], code: int, message: str
) -> None:
    ended, _, (line,) = here(*command("hydra/launcher=slurm", *words))
    assert ended == code
    assert line.startswith("error: ") and message in line
    assert not list(slurm.root.glob("*.sh"))


def test_without_slurm_and_where_slurm_refuses(
    slurm: Slurm, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm.root / "refuses").touch()
    code, _, errors = here(*command("hydra/launcher=slurm"))
    assert code == 1 and errors[-1] == (
        "error: sbatch did not take the job: sbatch: error: invalid partition specified: gpu"
    )
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    code, _, (line,) = here(*command("hydra/launcher=slurm"))
    assert code == 2
    assert line.startswith("error: hydra/launcher=slurm: sbatch is not on PATH; ")


def test_without_the_extra_it_is_named(root: Path) -> None:
    code = (
        "import sys; sys.modules['hydra_plugins.hydra_submitit_launcher'] = None\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "from curriculum.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = curriculum(*command("hydra/launcher=slurm"), cwd=root, code=code)
    assert done.returncode == 2
    assert "pip install 'curriculum[slurm]'" in done.stderr.splitlines()[-1], done.stderr
    assert curriculum(*command("dry_run=true"), cwd=root, code=code).returncode == 0


def started(slurm: Slurm, root: Path, restarts: int = 0) -> Batch:
    return slurm.start(100, root, restarts, **PYTHON)


@pytest.mark.slow
def test_a_job_that_is_signalled_goes_back_into_the_queue_and_ends_with_the_same_weights(
    slurm: Slurm, here: Here, root: Path, whole: Callable[[int], Path]
) -> None:
    here.submit("hydra.launcher.nodes=2")
    batch = started(slurm, root)
    wait_until(lambda: len(rows(root)) >= 3)
    batch.signal(signal.SIGTERM)
    assert batch.process.wait(60) == 75, batch.text()
    assert batch.requeued()
    done = len(rows(root))
    assert 3 <= done < TOTAL
    batch = started(slurm, root, restarts=1)
    assert batch.process.wait(120) == 0, batch.text()
    assert not batch.requeued()
    assert f"continuing after step {done}" in batch.text()
    assert rows(root) == rows(whole(2)) and weights(root) == weights(whole(2))


@pytest.mark.slow
def test_a_rank_that_dies_is_started_again_within_the_job(
    slurm: Slurm, here: Here, root: Path, whole: Callable[[int], Path]
) -> None:
    here.submit("hydra.launcher.tasks_per_node=2")
    batch = started(slurm, root)
    wait_until(lambda: len(rows(root)) >= 4 and committed(root))
    os.killpg(batch.tasks()[1], signal.SIGKILL)
    assert batch.process.wait(120) == 0, batch.text()
    assert not batch.requeued()
    assert "continuing after step" in batch.text()
    assert rows(root) == rows(whole(2)) and weights(root) == weights(whole(2))


@pytest.mark.slow
def test_a_job_that_lost_its_node_is_not_kept_out_by_its_own_lock(
    slurm: Slurm, here: Here, root: Path, whole: Callable[[int], Path]
) -> None:
    """Slurm starts it again on another node; what it ran on before cannot be looked up."""
    here.submit("hydra.launcher.tasks_per_node=2")
    batch = started(slurm, root)
    wait_until(lambda: len(rows(root)) >= 4)
    batch.process.kill()  # the script first, which would start the ranks again
    batch.signal(signal.SIGKILL)
    batch.process.wait(20)
    lock = root / RUN / "run.lock"
    lock.write_text(lock.read_text().replace('"host": "', '"host": "gone-'))
    other = slurm.start(100, root, 0, **PYTHON | {"SLURM_JOB_ID": "555"})
    assert other.process.wait(120) == 1 and "gone-" in other.text()
    batch = started(slurm, root, restarts=1)
    assert batch.process.wait(120) == 0, batch.text()
    assert weights(root) == weights(whole(2))


@pytest.mark.slow
def test_an_error_that_comes_again_ends_the_job_at_its_first_start(
    slurm: Slurm, here: Here, root: Path
) -> None:
    here.submit("hydra.launcher.tasks_per_node=2")
    (root / "data" / "prose.jsonl").unlink()  # after the submission looked
    batch = started(slurm, root)
    assert batch.process.wait(60) == 1
    assert not batch.requeued()
    assert len(list(slurm.root.glob("100.step*"))) == 1, "one start"
    assert "data/missing" in batch.text()


@pytest.mark.slow
def test_a_job_is_put_back_a_limited_number_of_times(slurm: Slurm, here: Here, root: Path) -> None:
    here.submit("hydra.launcher.max_num_timeout=2")
    for restarts, back in ((1, True), (2, False)):
        before, batch = len(rows(root)), started(slurm, root, restarts)
        wait_until(lambda before=before: len(rows(root)) > before)
        batch.signal(signal.SIGTERM)
        assert batch.process.wait(60) == 75, batch.text()
        assert batch.requeued() is back
