"""The walk-through runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from command import ENVIRONMENT, REPOSITORY
from nbclient import NotebookClient


def test_corrective_walkthrough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    notebook = nbformat.read(REPOSITORY / "notebooks" / "corrective_walkthrough.ipynb", 4)
    client = NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    text = "".join(o.get("text", "") for o in outputs)
    assert "plan/ends-on-replay" in text
    assert "planning.perplexity" in text
    assert "Qwen3ForCausalLM" in text
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert (tmp_path / "runs/corrective/tiny/final/model.safetensors").is_file()
