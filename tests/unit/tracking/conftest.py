"""Stores and plans that several tests share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import curriculum
from curriculum.tracking.mlflow_tracker import MlflowTracker

# name, role, objective, steps, batch_size, seq_len: the published corrective plan
CORRECTIVE = (
    ("rag_qa", "generative", "generative", 1800, 32, 2048),
    ("retrieval_university", "replay", "retrieval", 150, 16, 768),
    ("instruction", "generative", "generative", 1200, 32, 2048),
    ("causal_foundations", "replay", "causal", 400, 64, 512),
    ("summarization", "generative", "generative", 800, 32, 4096),
    ("retrieval_advanced", "replay", "retrieval", 150, 16, 1024),
    ("causal_university", "replay", "causal", 400, 16, 2048),
    ("qa_mixture", "generative", "generative", 600, 32, 4096),
    ("retrieval_school", "replay", "retrieval", 150, 32, 512),
    ("planning", "generative", "generative", 900, 32, 1024),
)
# A group is a query and three documents: four texts of at most seq_len go forward.
TEXTS = {"retrieval": 4, "causal": 1, "generative": 1}


_MAKE_STORE = """
import logging, sys
from curriculum.tracking.mlflow_store import open_store
logging.basicConfig(level=logging.INFO)
open_store(sys.argv[1], "unused")
"""


@pytest.fixture
def planned() -> list[dict]:
    """The corrective plan's budget as plain values."""
    return [
        {
            "name": name,
            "role": role,
            "objective": objective,
            "steps": steps,
            "nominal_tokens": steps * batch * length,
            "forward_tokens": steps * batch * length * TEXTS[objective],
            "flops": None,
        }
        for name, role, objective, steps, batch, length in CORRECTIVE
    ]


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite store with its tables and nothing in it; making one takes seconds.

    It is made in a process of its own; what that said on stdout and stderr lies in `said`, and its
    working directory was `cwd`.
    """
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    path.with_name("cwd").mkdir()
    with path.with_name("said").open("wb") as said:
        subprocess.run(
            [sys.executable, "-c", _MAKE_STORE, f"sqlite:///{path}"],
            cwd=path.with_name("cwd"),
            env={**os.environ, "PYTHONPATH": str(Path(curriculum.__file__).parents[1])},
            stdout=said,
            stderr=subprocess.STDOUT,
            check=True,
        )
    return path


@pytest.fixture
def run_dir(fresh_store: Path, tmp_path: Path) -> Path:
    """A run directory with a ready store in it."""
    directory = tmp_path / "run"
    directory.mkdir()
    shutil.copy(fresh_store, directory / "mlflow.db")
    return directory


@pytest.fixture
def make_tracker(run_dir: Path) -> Callable[..., MlflowTracker]:
    def make(ids: dict | None = None, flush_steps: int = 4, **changes) -> MlflowTracker:
        values = {
            "uri": f"sqlite:///{run_dir / 'mlflow.db'}",
            "experiment": "curriculum",
            "run_dir": run_dir,
            "plan_name": "corrective",
            "flush_steps": flush_steps,
            "ids": ids,
        }
        return MlflowTracker(**(values | changes))

    return make
