"""`python -m curriculum run` from the first step to the last, as a user calls it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import ENVIRONMENT, curriculum

TINY = ("run", "+plan=corrective", "profile=tiny", "engine.threads=1", "tracking=none")
RUN = Path("runs/corrective/tiny")
PHASES = [
    "rag_qa",
    "retrieval_university",
    "instruction",
    "causal_foundations",
    "summarization",
    "retrieval_advanced",
    "causal_university",
    "qa_mixture",
    "retrieval_school",
    "planning",
]


def rows(directory: Path) -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl` without the wall time."""
    lines = (directory / RUN / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def weights(directory: Path) -> bytes:
    return (directory / RUN / "final" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the tiny plan ran to its end, its base included."""
    directory = tmp_path_factory.mktemp("finished")
    # the only run of this module that is tracked
    result = curriculum(*TINY[:-1], cwd=directory)
    assert result.returncode == 0, result.stderr
    return directory


@pytest.fixture
def beside(finished: Path, tmp_path: Path) -> Path:
    """Another directory with the same base model and prepared data, but nothing of the plan."""
    shutil.copytree(finished / ".curriculum" / "cache", tmp_path / ".curriculum" / "cache")
    store = tmp_path / ".curriculum" / "store"
    store.mkdir()
    for entry in (finished / ".curriculum" / "store").glob("[!.]*"):
        if json.loads((entry / "meta.json").read_text())["phase"].startswith("base_"):
            shutil.copytree(entry, store / entry.name)
    return tmp_path


def test_run_files_and_rows(finished: Path) -> None:
    run = finished / RUN
    for name in ("config.yaml", "dry_run.json", "ledger.json", "report.html", "mlflow.db"):
        assert (run / name).stat().st_size > 0, name
    planned = json.loads((run / "dry_run.json").read_text())
    recorded = rows(finished)
    assert [row["step"] for row in recorded] == list(range(1, planned["totals"]["steps"] + 1))
    assert list(dict.fromkeys(row["phase"] for row in recorded)) == PHASES
    steps = {phase["name"]: phase["steps"] for phase in planned["phases"]}
    for name in PHASES:
        of_phase = [row["phase_step"] for row in recorded if row["phase"] == name]
        assert of_phase == list(range(1, steps[name] + 1))
    forward = {phase["name"]: phase["forward_tokens"] for phase in planned["phases"]}
    for name in PHASES:  # the budget that was printed is the one that was spent
        spent = sum(row["forward_tokens"] for row in recorded if row["phase"] == name)
        assert spent == forward[name], name
    assert not (finished / "outputs").exists()


def test_exactly_one_checkpoint_at_the_end(finished: Path) -> None:
    names = [path.name for path in (finished / RUN / "checkpoints").iterdir()]
    last = rows(finished)[-1]["step"]
    assert names.count(f"step_{last}") == 1
    assert all((finished / RUN / "checkpoints" / name / "COMMITTED").is_file() for name in names)


def test_a_finished_run_is_left_alone(finished: Path) -> None:
    def state() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in (finished / RUN).rglob("*") if p.is_file()}

    before = state()
    result = curriculum(*TINY[:-1], cwd=finished)
    assert result.returncode == 0, result.stderr
    assert "everything is up to date" in result.stdout
    assert state() == before


def test_dry_run_knows_what_is_cached(finished: Path) -> None:
    arguments = [*TINY[:-1], "dry_run=true", "output=json"]
    tree = json.loads(curriculum(*arguments, cwd=finished).stdout)
    assert [phase["cached"] for phase in tree["phases"]] == [True] * 10
    edited = curriculum(*arguments, "plan.phases.qa_mixture.lr_scale=0.9", cwd=finished)
    cached = {p["name"]: p["cached"] for p in json.loads(edited.stdout)["phases"]}
    assert [name for name in PHASES if cached[name]] == PHASES[:7]


def test_final_model_loads_and_export_is_equal(finished: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    done = curriculum("export", str(RUN), str(tmp_path / "out"), cwd=finished)
    assert done.returncode == 0, done.stderr
    last = rows(finished)[-1]["step"]
    checkpoint = RUN / "checkpoints" / f"step_{last}"
    done = curriculum("export", str(checkpoint), str(tmp_path / "out2"), cwd=finished)
    assert done.returncode == 0, done.stderr
    ids = torch.arange(1, 40)[None]
    scores = []
    for directory in (finished / RUN / "final", tmp_path / "out", tmp_path / "out2"):
        model = AutoModelForCausalLM.from_pretrained(directory).eval()
        scores.append(model(ids).logits)
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])
    assert scores[0].abs().max() > 0
    used = PreTrainedTokenizerFast.from_pretrained(finished / ".curriculum/cache/demo/tokenizer")
    exported = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "Plan: a feast"}, {"role": "assistant", "content": "x"}]
    assert exported.apply_chat_template(messages) == used.apply_chat_template(messages)


def test_probes_between_phases_use_a_part_of_the_limits(finished: Path, beside: Path) -> None:
    """Start and end measure four records each; between the phases a quarter of that: one."""

    def measured(place: str) -> float:
        found = json.loads((beside / RUN / "probes" / place / "rag_qa.generation.json").read_text())
        return found["values"]["records"]

    shutil.rmtree(beside / ".curriculum" / "store")
    shutil.copytree(finished / ".curriculum" / "store", beside / ".curriculum" / "store")
    result = curriculum(
        *TINY,
        "plan.phases.retrieval_school.lr_scale=0.9",
        *("probes.at_phase_end=true", "probes.phase_end_fraction=0.25"),
        cwd=beside,
    )
    assert result.returncode == 0, result.stderr
    assert measured("retrieval_school_58") == 1
    assert measured("planning_67") == 4


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "curriculum", *arguments],
        cwd=directory,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_row(directory: Path, reached: Callable[[dict[str, Any]], bool]) -> None:
    """Until `metrics.jsonl` holds a row that fits."""
    path = directory / RUN / "metrics.jsonl"
    for _ in range(6000):
        if path.exists():
            whole = [line for line in path.read_bytes().split(b"\n")[:-1] if line]
            if any(reached(json.loads(line)) for line in whole):
                return
        time.sleep(0.01)
    raise AssertionError("the run did not get there")


def in_phase(name: str, step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["phase"] == name and row["phase_step"] >= step


@pytest.mark.slow
def test_killed_in_three_phases_equals_the_uninterrupted_run(finished: Path, beside: Path) -> None:
    arguments = (*TINY, "checkpoint.every_steps=200")
    for name, step in (("rag_qa", 5), ("retrieval_university", 1), ("causal_foundations", 3)):
        process = start(beside, *arguments)
        try:
            wait_for_row(beside, in_phase(name, step))
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert not (beside / RUN / "final").exists()
    result = curriculum(*arguments, cwd=beside)
    assert result.returncode == 0, result.stderr
    assert "continuing after step" in result.stderr
    assert rows(beside) == rows(finished)
    assert weights(beside) == weights(finished)
    ledgers = [json.loads((d / RUN / "ledger.json").read_text()) for d in (finished, beside)]
    counts = [
        [(row["phase"], row["steps"], row["forward_tokens"]) for row in ledger["rows"]]
        for ledger in ledgers
    ]
    assert counts[0] == counts[1]


def test_sigterm_saves_and_says_how_to_go_on(finished: Path, beside: Path) -> None:
    process = start(beside, *TINY)
    wait_for_row(beside, in_phase("instruction", 4))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75, errors
    assert "the same command goes on" in errors
    done = rows(beside)
    assert (beside / RUN / "checkpoints" / f"step_{done[-1]['step']}" / "COMMITTED").is_file()
    assert curriculum(*TINY, cwd=beside).returncode == 0
    assert rows(beside) == rows(finished)
    assert weights(beside) == weights(finished)


def test_two_processes_train_the_same_plan(finished: Path, beside: Path) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "curriculum", *TINY),
        ],
        cwd=beside,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    for one, two in zip(rows(finished)[:50], rows(beside)[:50], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4), one["step"]
        assert two["forward_tokens"] == one["forward_tokens"]
        assert two["trained_tokens"] == one["trained_tokens"]
        assert two["lr"] == one["lr"]
    assert len(rows(beside)) == len(rows(finished))


def test_an_edited_plan_keeps_its_finished_phases(finished: Path, beside: Path) -> None:
    store = beside / ".curriculum" / "store"
    shutil.rmtree(store)
    shutil.copytree(finished / ".curriculum" / "store", store)
    result = curriculum(
        *TINY, "plan.phases.qa_mixture.lr_scale=0.9", "checkpoint.keep_last=99", cwd=beside
    )
    assert result.returncode == 0, result.stderr
    assert "reusing rag_qa" in result.stderr
    # phases of 6, 2 and 9 steps after 50; every 6 steps of a phase, and each end once
    saved = {path.name for path in (beside / RUN / "checkpoints").iterdir()}
    assert saved == {"step_56", "step_58", "step_64", "step_67"}
    assert list(dict.fromkeys(row["phase"] for row in rows(beside))) == PHASES[7:]
    ledger = json.loads((beside / RUN / "ledger.json").read_text())
    status = [row["status"] for row in ledger["rows"]]
    assert status == ["reused"] * 7 + ["done"] * 3
