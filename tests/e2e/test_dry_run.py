"""`python -m curriculum run ... dry_run=true` as a user calls it."""

import json
import re
import shutil

import pytest
from command import REPOSITORY, curriculum, files, one_error

PRODUCTION = ("run", "+plan=corrective", "profile=production", "dry_run=true")
SPY = """
import sys
from curriculum.cli import main
code = main(sys.argv[1:])
heavy = {"torch", "transformers", "mlflow", "pyarrow", "numpy"} & set(sys.modules)
print("heavy:", sorted(heavy), file=sys.stderr)
sys.exit(code)
"""
FAKE_RUNNER = """
import os, sys, types
runner = types.ModuleType("curriculum.runner")
def run(config):
    print(config.seed, config.run.dir, os.getcwd(), sep="|")
    return int(config.optim.weight_decay)
runner.run = run
sys.modules["curriculum.runner"] = runner
from curriculum.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_production_figures_and_no_heavy_imports(tmp_path):
    result = curriculum(*PRODUCTION, "output=json", cwd=tmp_path, code=SPY)
    assert result.returncode == 0, result.stderr
    assert "heavy: []" in result.stderr
    tree = json.loads(result.stdout)
    assert (tree["plan"], tree["profile"]) == ("corrective", "production")
    totals = tree["totals"]
    assert (totals["phases"], totals["steps"]) == (10, 6550)
    assert totals["nominal_tokens"] == 442_572_800
    assert totals["forward_tokens"] == 462_848_000
    assert totals["by_role"]["replay"]["nominal_tokens"] == 32_972_800
    assert totals["by_role"]["replay"]["share"]["nominal"] == pytest.approx(0.0745, abs=5e-5)
    assert totals["by_role"]["replay"]["share"]["forward"] == pytest.approx(0.1150, abs=5e-5)
    assert [p["name"] for p in tree["phases"]][::3] == [
        "rag_qa",
        "causal_foundations",
        "causal_university",
        "planning",
    ]
    assert {f["code"]: f["severity"] for f in tree["findings"]} == {
        "plan/init-missing": "warning",
        "data/missing": "warning",
    }
    assert files(tmp_path) == set(), "a dry run without data writes nothing"


def test_table_at_a_hundred_columns(tmp_path):
    result = curriculum(*PRODUCTION, cwd=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "10 phases, 6,550 steps, 442,572,800 nominal tokens" in lines[0]


def test_first_sft_ends_on_replay(tmp_path):
    result = curriculum(
        "run", "+plan=first_sft", "profile=production", "dry_run=true", "output=json", cwd=tmp_path
    )
    assert result.returncode == 1
    tree = json.loads(result.stdout)
    assert (tree["totals"]["phases"], tree["totals"]["steps"]) == (13, 13_900)
    assert tree["totals"]["nominal_tokens"] == 851_353_600
    errors = [(f["code"], f["phase"]) for f in tree["findings"] if f["severity"] == "error"]
    assert errors == [("plan/ends-on-replay", "causal_advanced")]
    ignored = curriculum(
        "run", "plan=first_sft", "dry_run=true", "checks.ignore=[plan/ends-on-replay]", cwd=tmp_path
    )
    assert ignored.returncode == 0
    assert "ignored plan/ends-on-replay" in ignored.stdout


def test_demo_before_its_corpus_exists(tmp_path):
    result = curriculum("run", "+plan=corrective", "dry_run=true", "output=json", cwd=tmp_path)
    tree = json.loads(result.stdout)
    assert result.returncode == 0
    assert tree["findings"] == []
    assert tree["totals"]["steps"] == 655
    assert tree["totals"]["nominal_tokens"] == 1_037_280
    assert {p["windows_available"] for p in tree["phases"]} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rnu", "+plan=corrective"), "rnu: no such verb; did you mean 'run'?"),
        (
            ("run", "+plan=corectiv", "dry_run=true"),
            "plan=corectiv: no such plan; did you mean 'corrective'?",
        ),
        (("run", "dry_run=true"), "plan: none given; use +plan=NAME"),
        (
            ("run", "+plan=corrective", "plan.phases.rag_qa.stepz=1"),
            "plan.phases.rag_qa.stepz=1: unknown key; did you mean 'steps'?",
        ),
        (
            ("run", "+plan=corrective", "plan.init_from=out/epoch=1"),
            "cannot be read",
        ),
        (("run", "+plan=corrective", "data.root=/a,b"), "Ambiguous value for argument"),
        (
            ("run", "+plan=corrective", "plan.phases.rag_qa.after=planning"),
            "plan.phases: cycle rag_qa -> planning",
        ),
        (("run", "+plan=corrective", "--config-dir", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_wrong_commands_end_in_one_line(tmp_path, arguments, message):
    result = curriculum(*arguments, cwd=tmp_path)
    assert message in one_error(result)
    assert result.stdout == ""
    assert files(tmp_path) == set()


def test_no_arguments_shows_the_verbs(tmp_path):
    result = curriculum(cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert "run " in result.stderr and "export" in result.stderr
    assert curriculum("--help", cwd=tmp_path).returncode == 0


def test_missing_data_is_a_warning_and_short_of_nothing(tmp_path):
    folder = tmp_path / "my data=1, [x]"
    (folder / "rag_qa").mkdir(parents=True)
    for split in ("train", "heldout"):
        (folder / "rag_qa" / f"{split}.jsonl").write_text("{}\n")
    result = curriculum(*PRODUCTION, f'data.root="{folder}"', "output=json", cwd=tmp_path, code=SPY)
    assert result.returncode == 0, result.stderr
    missing = [f["phase"] for f in json.loads(result.stdout)["findings"] if f["phase"]]
    assert len(missing) == 9 and "rag_qa" not in missing
    assert "torch" not in result.stderr and "pyarrow" not in result.stderr


def test_relative_paths_mean_the_working_directory(tmp_path):
    (tmp_path / "data" / "rag_qa").mkdir(parents=True)
    for split in ("train", "heldout"):
        (tmp_path / "data" / "rag_qa" / f"{split}.jsonl").write_text("{}\n")
    for here, root in ((tmp_path, "data"), (tmp_path / "data", ".")):
        result = curriculum(*PRODUCTION, f"data.root={root}", "output=json",
                            "hydra.job.chdir=true", cwd=here)  # fmt: skip
        findings = json.loads(result.stdout)["findings"]
        assert "rag_qa" not in [f["phase"] for f in findings], f"from {here}"
        assert len([f for f in findings if f["code"] == "data/missing"]) == 9


def test_multirun_gives_each_job_its_directory_and_the_worst_code(tmp_path):
    result = curriculum(
        "run", "+plan=corrective", "--multirun", "profile=tiny", "seed=1,2",
        "optim.weight_decay=0,1",
        cwd=tmp_path, code=FAKE_RUNNER,
    )  # fmt: skip
    assert result.returncode == 1
    jobs = [line.split("|") for line in result.stdout.splitlines()]
    assert [job[0] for job in jobs] == ["1", "1", "2", "2"]
    directories = [job[1] for job in jobs]
    assert len(set(directories)) == 4
    prefix = str(tmp_path / "runs/corrective/tiny") + "/"
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+", d.removeprefix(prefix)) for d in directories)
    assert {job[2] for job in jobs} == {str(tmp_path)}
    assert {name.split("/")[0] for name in files(tmp_path)} <= {".curriculum"}


def test_multirun_stops_when_interrupted(tmp_path):
    result = curriculum(
        "run", "-m", "+plan=corrective", "seed=1,2", "optim.weight_decay=75",
        cwd=tmp_path, code=FAKE_RUNNER,
    )  # fmt: skip
    assert result.returncode == 75
    assert len(result.stdout.splitlines()) == 1


def test_an_explicit_run_directory_is_kept(tmp_path):
    result = curriculum(
        "run", "+plan=corrective", "run.dir=out/here", "optim.weight_decay=1",
        cwd=tmp_path, code=FAKE_RUNNER,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stdout.split("|")[1] == str(tmp_path / "out/here")
    assert files(tmp_path) == set()


def test_hydra_flags_work(tmp_path):
    shown = curriculum("run", "+plan=corrective", "--cfg", "job", "seed=7", cwd=tmp_path)
    assert shown.returncode == 0 and "seed: 7" in shown.stdout and "rag_qa:" in shown.stdout
    info = curriculum("run", "+plan=corrective", "--info", "defaults", cwd=tmp_path)
    assert info.returncode == 0 and "generative/rag_qa" in info.stdout and info.stderr == ""
    text = curriculum("run", "--help", cwd=tmp_path)
    assert (
        text.returncode == 0
        and "plan: calibrated, corrective, first_sft, foundation" in text.stdout
    )
    assert files(tmp_path) == set()


def test_the_layout_of_a_wheel(tmp_path):
    package = tmp_path / "site" / "curriculum"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "curriculum", package, ignore=ignore)
    for folder in ("conf", "phases"):
        shutil.copytree(REPOSITORY / folder, package / folder)
    here = tmp_path / "empty"
    here.mkdir()
    site = str(tmp_path / "site")
    where = curriculum("ls", cwd=here, PYTHONPATH=site, code=(
        "import curriculum.library as l; print(*l.shipped(), sep='\\n')"
    ))  # fmt: skip
    assert where.stdout.split() == [str(package / "conf"), str(package / "phases")]
    result = curriculum(*PRODUCTION, "output=json", cwd=here, PYTHONPATH=site)
    assert json.loads(result.stdout)["totals"]["steps"] == 6550
