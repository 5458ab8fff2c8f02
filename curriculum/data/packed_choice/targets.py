"""Target distributions beside an evaluation set, whose bins hold none: what a scorer compares with.

`targets.arrow` is an Arrow IPC file with the columns `row_id` int64, from 0 on in order, and
`target_probs` list<float32>, one probability a choice in the order of the row's `choice_ids`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from curriculum.data.packed_choice.arrow import list_array
from curriculum.data.packed_choice.columns import Ragged
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.files import replacing

TARGETS_FILE = "targets.arrow"


def write_targets(directory: Path | str, targets: Sequence[np.ndarray]) -> None:
    """Write the probabilities of each row, by row id; whole or not at all."""
    import pyarrow as pa

    probs = Ragged(np.concatenate(targets), np.cumsum([0, *map(len, targets)]))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(np.arange(len(targets), dtype=np.int64)), list_array(probs, np.float32)],
        names=["row_id", "target_probs"],
    )
    with (
        replacing(Path(directory) / TARGETS_FILE) as handle,
        pa.ipc.new_file(handle, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def read_targets(directory: Path | str, counts: np.ndarray) -> list[list[float]] | None:
    """The probabilities of each row, by row id; None if they do not lie in the directory.

    `counts`: choices of each row, by row id. `BadSet` if the file is no such file, or does not hold
    every row once with one probability a choice.
    """
    import pyarrow as pa

    path = Path(directory) / TARGETS_FILE
    if not path.exists():
        return None
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            table = reader.read_all()
        ids, probs = table["row_id"].to_pylist(), table["target_probs"].to_pylist()
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSet(path, f"holds no row_id and target_probs ({reason})") from None
    by_id = dict(zip(ids, probs, strict=True))
    if len(by_id) != len(ids) or set(by_id) != set(range(len(counts))):
        raise BadSet(path, f"must hold every row id from 0 to {len(counts) - 1} once")
    for row, count in enumerate(counts.tolist()):
        if by_id[row] is None or len(by_id[row]) != count:
            raise BadSet(path, f"row_id={row}: must have a probability for each of {count} choices")
    return [by_id[row] for row in range(len(counts))]
