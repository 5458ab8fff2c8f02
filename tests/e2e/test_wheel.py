"""An installed wheel brings plans and cards along and works from an empty directory."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from command import REPOSITORY, curriculum, files


def test_wheel_runs_from_an_empty_directory(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert (site / "hydra_plugins" / "curriculum_slurm.py").is_file()
    place = "import curriculum, sys; print(curriculum.__file__)"
    found = curriculum(cwd=empty, code=place, PYTHONPATH=str(site))
    assert found.stdout.startswith(str(site))
    arguments = ("run", "+plan=corrective", "dry_run=true", "output=json")
    result = curriculum(*arguments, cwd=empty, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["totals"]["steps"] == 655
    assert "corrective" in curriculum("ls", cwd=empty, PYTHONPATH=str(site)).stdout
    assert files(empty) == set()
