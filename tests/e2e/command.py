"""Calls the program as a user does, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def curriculum(*arguments: str, cwd: Path, code: str | None = None, **env: str):
    """`python -m curriculum ARGUMENTS`, or the Python text `code` with them, from `cwd`."""
    start = ["-m", "curriculum"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=cwd,
        env={**ENVIRONMENT, **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def one_error(result, *, code: int = 2) -> str:
    """The only line on stderr of a command that was refused."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def files(folder: Path) -> set[str]:
    """Everything below a folder, relative to it."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
