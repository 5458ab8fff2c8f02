"""Probe results on disk: `<probe>.json` with the values and `<probe>.arrow` with the rows.

A file appears complete or not at all, and the JSON is strict: no NaN, no Infinity.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from curriculum.errors import RunError
from curriculum.files import replacing, write_json
from curriculum.probes.base import ProbeResult

_FIELDS = ("name", "kind", "phase", "objective", "status", "reason", "values")


def to_json(result: ProbeResult) -> dict[str, Any]:
    """Everything but the rows, as plain JSON values."""
    return {key: getattr(result, key) for key in _FIELDS}


def write(results: Sequence[ProbeResult], directory: Path | str) -> None:
    """Write every result into `directory`, which is made; only one rank may call this."""
    import pyarrow as pa

    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        rows_file = folder / f"{result.name}.arrow"
        if result.rows:
            table = pa.Table.from_pylist(result.rows)
            with replacing(rows_file) as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        else:
            rows_file.unlink(missing_ok=True)
        write_json(folder / f"{result.name}.json", to_json(result))


def load(directory: Path | str) -> list[ProbeResult]:
    """The results in `directory` by name, without their rows; none if there is no directory."""
    found = []
    for path in sorted(Path(directory).glob("*.json")):
        try:
            found.append(ProbeResult(**json.loads(path.read_text(encoding="utf-8"))))
        except (TypeError, ValueError) as error:
            raise RunError(f"{path} is not a probe result ({error}); delete it") from None
    return found
