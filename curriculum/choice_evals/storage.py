"""A scored step on disk: `RUN/choice_evals/NAME/step_N/`, N the steps of the run so far.

`predictions.arrow` comes first: `row_id` int64 from 0 on, `choice_ids` list<int32>, `choice_logits`
list<float32>, one row for each row of the set. `metrics.json` comes last and marks the step as
scored. Each is whole or absent. What the predictions were made from stands in the metadata of their
file, so that results of other weights, or of a set that has changed, never pass for these.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from curriculum.errors import RunError
from curriculum.files import replacing, write_json

DIRECTORY = "choice_evals"
PREDICTIONS = "predictions.arrow"
METRICS = "metrics.json"

_METADATA = b"curriculum.choice_eval"

State = Literal["scored", "predicted", "missing"]


@dataclass(frozen=True)
class Origin:
    """What predictions are of. `weights` names them (key of the phase, steps of it), `set` is the
    content of the set. `phase` is where it was due: its settings say how to score."""

    name: str
    step: int
    phase: str
    weights: str
    set: str

    def same_as(self, other: "Origin") -> bool:
        """True for predictions that must be equal: the phase at whose border they were due does
        not matter."""
        return (self.name, self.step, self.weights, self.set) == (
            other.name,
            other.step,
            other.weights,
            other.set,
        )


@dataclass(frozen=True, eq=False)
class Predictions:
    """Rows by their ids, from 0 on. `counts` int64 [N]; `choice_ids` int32 and `logits` float32
    [sum(counts)], row after row."""

    counts: np.ndarray
    choice_ids: np.ndarray
    logits: np.ndarray


def step_directory(run_dir: Path, name: str, step: int) -> Path:
    return run_dir / DIRECTORY / name / f"step_{step}"


def diagram_file(run_dir: Path, name: str) -> Path:
    """Where the reliability diagram of a set lies."""
    return run_dir / DIRECTORY / name / f"reliability_{name}.svg"


def write_predictions(directory: Path, predictions: Predictions, origin: Origin) -> None:
    """Write the predictions of a step; a marker of an earlier evaluation is taken away first."""
    import pyarrow as pa

    (directory / METRICS).unlink(missing_ok=True)
    offsets = pa.array(np.cumsum([0, *predictions.counts]), pa.int32())

    def lists(values: np.ndarray, kind: Any) -> Any:
        return pa.ListArray.from_arrays(offsets, pa.array(values, kind))

    table = pa.table(
        {
            "row_id": pa.array(np.arange(len(predictions.counts)), pa.int64()),
            "choice_ids": lists(predictions.choice_ids, pa.int32()),
            "choice_logits": lists(predictions.logits, pa.float32()),
        }
    ).replace_schema_metadata({_METADATA: json.dumps(asdict(origin)).encode()})
    with (
        replacing(directory / PREDICTIONS) as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def read_predictions(directory: Path) -> tuple[Predictions, Origin]:
    """The predictions of a step. `RunError` if they are absent, damaged, or of something else."""
    path = directory / PREDICTIONS
    table, origin = _table(path), None
    try:
        origin = Origin(**json.loads((table.schema.metadata or {})[_METADATA]))
        ids, logits = (table[name].combine_chunks() for name in ("choice_ids", "choice_logits"))
        counts = np.asarray(logits.value_lengths()).astype(np.int64)
        return Predictions(counts, np.asarray(ids.flatten()), np.asarray(logits.flatten())), origin
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}: holds no predictions of a choice eval ({error})") from None


def _table(path: Path) -> Any:
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path}: cannot be read ({reason})") from None


def write_metrics(directory: Path, values: dict[str, Any]) -> None:
    """Mark a step as scored."""
    write_json(directory / METRICS, values)


def read_metrics(directory: Path) -> dict[str, Any] | None:
    """What marks a step as scored; None where nothing does, or what is there is damaged."""
    try:
        values = json.loads((directory / METRICS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def state(directory: Path, wanted: Origin) -> State:
    """How far the evaluation of a step got."""
    try:
        _, found = read_predictions(directory)
    except RunError:
        return "missing"
    if not found.same_as(wanted):
        return "missing"
    return "predicted" if read_metrics(directory) is None else "scored"


def steps(run_dir: Path) -> list[Path]:
    """Directories of all steps that hold predictions, by set and number."""
    found = (run_dir / DIRECTORY).glob(f"*/step_*/{PREDICTIONS}")
    return sorted(
        (path.parent for path in found if path.parent.name.removeprefix("step_").isdigit()),
        key=lambda path: (path.parent.name, int(path.name.removeprefix("step_"))),
    )
