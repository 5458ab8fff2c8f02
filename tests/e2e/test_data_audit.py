"""`data audit` as a user calls it, on a plan of one's own."""

import json
from pathlib import Path

import pytest
from command import curriculum

PLAN = """
name: own
init_from: scratch
phases:
  qa:
    objective: generative
    task: qa
    role: generative
    steps: 2
    batch_size: 2
    seq_len: 2048
    data: {sources: ["train.jsonl"]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan and its data: 28 of 100 answers are the same."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "plan").mkdir()
    (folder / "plan" / "own.yaml").write_text(PLAN)
    rows = [
        {
            "question": f"Where does river {n} rise?",
            "answer": "The passages do not contain the answer." if n < 28 else f"in hills {n}",
            "passages": [f"River {n} rises in hills {n if n >= 28 else 'far away'}."],
        }
        for n in range(100)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _audit(folder: Path, *arguments: str):
    return curriculum("data", "audit", "+plan=own", "--config-dir", ".", *arguments, cwd=folder)


def test_an_error_is_shown_and_ends_in_exit_code_1(folder: Path) -> None:
    result = _audit(folder)
    assert result.returncode == 1, result.stderr
    assert "data/dominant-target" in result.stdout
    assert "28 of 100 targets (28.0%)" in " ".join(result.stdout.split())
    assert "train.jsonl:1\n" in result.stdout
    assert "python -m curriculum data abstain" in " ".join(result.stdout.split())


def test_json_is_all_that_stdout_holds(folder: Path) -> None:
    result = _audit(folder, "output=json")
    assert result.returncode == 1
    values = json.loads(result.stdout)
    assert values["plan"] == "own"
    (phase,) = values["phases"]
    assert (phase["name"], phase["records"], phase["top_target"]) == ("qa", 100, 0.28)
    assert values["findings"][0]["code"] == "data/dominant-target"
    assert len(values["findings"][0]["examples"]) == 3


def test_an_ignored_code_stops_nothing(folder: Path) -> None:
    result = _audit(folder, "checks.ignore=[data/dominant-target]", "output=json")
    assert result.returncode == 0, result.stdout
    severities = {f["code"]: f["severity"] for f in json.loads(result.stdout)["findings"]}
    assert severities["data/dominant-target"] == "ignored"


def test_a_dry_run_with_data_audits_it_too(folder: Path) -> None:
    result = curriculum(
        "run", "+plan=own", "--config-dir", ".", "dry_run=data", "output=json", cwd=folder
    )
    assert result.returncode == 1, result.stderr
    codes = [finding["code"] for finding in json.loads(result.stdout)["findings"]]
    assert "data/dominant-target" in codes
