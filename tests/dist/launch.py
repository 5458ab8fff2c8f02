"""Run a script of cases in real gloo processes under torchrun, and read what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def launch(
    processes: int, out: Path, *arguments: str, script: str = "cases.py", timeout: float = 280
) -> dict[str, Any]:
    """Results of every case by its name, as rank 0 returned them."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", str(processes)),
        *(str(Path(__file__).with_name(script)), str(out), *arguments),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())
