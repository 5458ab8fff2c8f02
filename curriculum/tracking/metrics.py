"""`metrics.jsonl`: one row a step, written at once, cut back to the checkpoint on resume.

The file is the record that training itself keeps: it needs no server and no other program. Rows
are strict JSON, so a loss that is not finite is written as null. A process that is killed while it
writes leaves a torn last line, which every reader here ignores and the next writer removes.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from curriculum.errors import RunError
from curriculum.files import write_bytes

log = logging.getLogger(__name__)

_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


@dataclass(frozen=True)
class MetricsRow:
    """One optimizer step. `step` counts over the whole plan, `phase_step` within the phase, both
    from 1. `forward_tokens`, `trained_tokens` and `seconds` are of this step alone."""

    step: int
    phase: str
    phase_step: int
    loss: float | None
    lr: float
    grad_norm: float | None
    forward_tokens: int
    trained_tokens: int
    seconds: float


class MetricsLog:
    """The open log of one run; only one process writes it. Use as a context manager or `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not _whole(data := path.read_bytes()):
            write_bytes(path, _without_torn_line(data))
        self._handle = path.open("ab", buffering=0)
        self._pending = b""
        self._told = False

    def append(self, row: MetricsRow) -> None:
        """Write one row and hand it to the operating system: it survives a kill of the process.

        Where the disk takes no more, rows wait in memory for it.
        """
        self._pending += orjson.dumps(asdict(row), option=_OPTIONS)
        self._write_pending()

    def _write_pending(self) -> None:
        try:
            while self._pending:
                self._pending = self._pending[self._handle.write(self._pending) :]
            self._told = False
        except OSError as error:
            if not self._told:
                log.warning(
                    "%s: cannot be written: %s; its rows follow once they can be, training goes on",
                    self.path,
                    error.strerror,
                )
            self._told = True

    def keep(self, blocks: Mapping[str, range]) -> None:
        """Keep the rows of some phases, as far as they reach; the file is replaced as a whole.

        `blocks`: the steps of each phase within the run. They are those that its rows have, unless
        a phase before it was taken out of the record: then its rows are numbered anew.
        """
        self._handle.close()
        data = self.path.read_bytes()
        kept = b"".join(_placed(line, row, blocks) for line, row in _rows(self.path, data))
        if kept != data:
            write_bytes(self.path, kept)
        self._handle = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._write_pending()
        self._handle.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole rows, oldest first; an absent file has none. `RunError` names a damaged line."""
    return [row for _, row in _rows(path, path.read_bytes())] if path.exists() else []


def step_metrics(row: MetricsRow) -> dict[str, float]:
    """What a tracker shows of a step: loss, lr, gradient norm, tokens and tokens per second.

    A figure that is not finite is left out.
    """
    rate = row.forward_tokens / row.seconds if row.seconds > 0 else None
    values: Mapping[str, float | None] = {
        "loss": row.loss,
        "lr": row.lr,
        "grad_norm": row.grad_norm,
        "forward_tokens": row.forward_tokens,
        "trained_tokens": row.trained_tokens,
        "tokens_per_second": rate,
    }
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and abs(value) < float("inf")
    }


def _placed(line: bytes, row: dict[str, Any], blocks: Mapping[str, range]) -> bytes:
    """A row's line at its place in the record; empty if it has none."""
    block = blocks.get(row["phase"], range(0))
    if row["phase_step"] > len(block):
        return b""
    step = block[row["phase_step"] - 1]
    return line if row["step"] == step else orjson.dumps({**row, "step": step}, option=_OPTIONS)


def _whole(data: bytes) -> bool:
    return not data or data.endswith(b"\n")


def _without_torn_line(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _rows(path: Path, data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Pairs of a line, its newline included, and its row."""
    for number, line in enumerate(_without_torn_line(data).splitlines(keepends=True), start=1):
        try:
            row = orjson.loads(line)
            if not (isinstance(row["step"], int) and isinstance(row["phase_step"], int)):
                raise ValueError("a step is not an integer")
            if not isinstance(row["phase"], str):
                raise ValueError("phase is not a name")
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}:{number}: not a row of metrics ({error}); remove the line"
            ) from None
        yield line, row
