"""Files with a user's code that a phase runs: its own objective, its own loss.

Found without importing anything: a dry run stays quick, and code that fails is reported where it
is needed.
"""

import sys
from pathlib import Path

from curriculum.config import Phase


def code_files(phase: Phase) -> list[Path]:
    """The file of each import path that the phase names; what such a file imports is not followed.

    Code of this package has no file here, nor has what is not found as a file on `sys.path`.
    """
    named = [phase.loss.import_path]
    if not isinstance(phase.objective, str):
        named.append(phase.objective.get("_target_"))
    modules = [str(name).rpartition(".")[0] for name in named if name]
    files = [_file(m) for m in modules if m and m.split(".")[0] != "curriculum"]
    return [file for file in dict.fromkeys(files) if file is not None]


def _file(module: str) -> Path | None:
    place = Path(*module.split("."))
    for entry in sys.path:
        for candidate in (place.with_suffix(".py"), place / "__init__.py"):
            if (Path(entry) / candidate).is_file():
                return Path(entry) / candidate
    return None
