"""The ledger: compute per phase, planned beside realised, and shares of it with their units.

Planned figures are the plan's budget, kept as plain values. Realised figures are added step by step
and travel with every checkpoint, so that a resumed run counts each step once. A share is always a
share *of something*: nominal tokens, forward tokens, FLOPs, steps or wall time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from curriculum.errors import RunError
from curriculum.files import write_json

UNITS = ("nominal", "forward", "flops", "steps", "wall")
SCHEMA = 1

Status = Literal["running", "done", "reused"]
By = Literal["phase", "role", "objective"]
Shares = dict[str, dict[str, float | None]]


@dataclass
class LedgerRow:
    """Realised figures of one phase.

    `steps` counts every step that was computed; `skipped_steps` says how many of those were dropped
    because the loss or the gradient norm was not finite. `forward_tokens` leaves recomputation out,
    which `recomputed_tokens` counts. `flops` is None once any step's is unknown. `seconds` is the
    steps' wall time, `probe_seconds` that of the probes; `times` says where the steps' went, of the
    first rank. `peak_flops` is what the machines could do in matrix products, in operations a
    second, `peak_memory` bytes of the first rank's process; both None until the phase has ended.
    `key` says which weights came out of it (`plan.keys`).
    """

    phase: str
    role: str
    objective: str
    status: Status = "running"
    steps: int = 0
    skipped_steps: int = 0
    nominal_tokens: int = 0
    forward_tokens: int = 0
    recomputed_tokens: int = 0
    trained_tokens: int = 0
    flops: float | None = 0.0
    seconds: float = 0.0
    probe_seconds: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    peak_flops: float | None = None
    peak_memory: int | None = None
    key: str | None = None


@dataclass
class Ledger:
    """Rows by phase in the order in which they began; `planned` in the order of the plan.

    A planned entry is a phase of the budget as plain values, of which `name`, `role`, `objective`,
    `steps`, `nominal_tokens`, `forward_tokens` and `flops` are read.
    """

    planned: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, LedgerRow] = field(default_factory=dict)

    def begin(self, phase: str, role: str, objective: str, key: str | None = None) -> LedgerRow:
        """The phase's row: a new one, or the one that a resumed run continues."""
        row = self.rows.get(phase)
        if row is None:
            row = self.rows[phase] = LedgerRow(phase, role, objective, key=key)
        return row

    def step(
        self,
        phase: str,
        *,
        nominal_tokens: int,
        forward_tokens: int,
        trained_tokens: int,
        seconds: float,
        flops: float | None = None,
        recomputed_tokens: int = 0,
        skipped: bool = False,
        times: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Add one step of a phase that has begun."""
        row = self.rows[phase]
        row.steps += 1
        row.skipped_steps += int(skipped)
        row.nominal_tokens += nominal_tokens
        row.forward_tokens += forward_tokens
        row.recomputed_tokens += recomputed_tokens
        row.trained_tokens += trained_tokens
        row.flops = None if row.flops is None or flops is None else row.flops + flops
        row.seconds += seconds
        for part, spent in times.items():
            row.times[part] = row.times.get(part, 0.0) + spent

    def measured(self, phase: str, peak_flops: float, peak_memory: int) -> None:
        """What the hardware could do, and what a phase took of its memory."""
        self.rows[phase].peak_flops, self.rows[phase].peak_memory = peak_flops, peak_memory

    def probed(self, phase: str, seconds: float) -> None:
        """Add the wall time of probes that ran in or after a phase."""
        self.rows[phase].probe_seconds += seconds

    def finish(self, phase: str, status: Status = "done") -> None:
        self.rows[phase].status = status

    def reuse(self, row: LedgerRow) -> None:
        """Take over the row of a phase that an earlier run finished."""
        self.rows[row.phase] = LedgerRow(**{**asdict(row), "status": "reused"})

    def shares(self, by: By = "phase") -> dict[Literal["planned", "realised"], Shares]:
        """Shares in [0, 1] of the total: `{"planned": {name: {unit: share}}, "realised": ...}`.

        None where a part or the total is unknown or the total is zero; planned wall time is always
        unknown.
        """
        return {
            "planned": _shares([_planned_amounts(phase, by) for phase in self.planned]),
            "realised": _shares([_realised_amounts(row, by) for row in self.rows.values()]),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "planned": [dict(phase) for phase in self.planned],
            "rows": [asdict(row) for row in self.rows.values()],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Ledger":
        """The inverse of `to_dict`. `RunError` for another schema or damaged values."""
        if values.get("schema") != SCHEMA:
            raise RunError(
                f"ledger schema={values.get('schema')!r}: this version reads schema {SCHEMA}; "
                "start the run in a new run.dir"
            )
        try:
            rows = [LedgerRow(**row) for row in values["rows"]]
            return cls([dict(phase) for phase in values["planned"]], {r.phase: r for r in rows})
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"ledger: not readable ({error}); start the run in a new run.dir"
            ) from None

    def write(self, path: Path) -> None:
        """Write as JSON; a reader sees the old file or the new one, never a part."""
        write_json(path, self.to_dict())

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """Read what `write` wrote. `RunError` names a file that is not a ledger."""
        try:
            values = json.loads(path.read_bytes())
        except ValueError as error:
            raise RunError(f"{path}: not JSON ({error}); start the run in a new run.dir") from None
        return cls.from_dict(values)


def share_metrics(ledger: Ledger) -> dict[str, float]:
    """Known shares under flat names, e.g. `share/realised/role/replay/forward`."""
    metrics: dict[str, float] = {}
    kinds: tuple[By, ...] = ("phase", "role", "objective")
    for by in kinds:
        for side, shares in ledger.shares(by).items():
            for name, units in shares.items():
                for unit, share in units.items():
                    if share is not None:
                        metrics[f"share/{side}/{by}/{name}/{unit}"] = share
    return metrics


def total(values: Sequence[float | None]) -> float | None:
    """The sum, or None if any part is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


_Amounts = tuple[str, dict[str, float | None]]


def _planned_amounts(phase: Mapping[str, Any], by: By) -> _Amounts:
    return phase["name" if by == "phase" else by], {
        "nominal": phase.get("nominal_tokens"),
        "forward": phase.get("forward_tokens"),
        "flops": phase.get("flops"),
        "steps": phase.get("steps"),
        "wall": None,
    }


def _realised_amounts(row: LedgerRow, by: By) -> _Amounts:
    return getattr(row, by), {
        "nominal": row.nominal_tokens,
        "forward": row.forward_tokens,
        "flops": row.flops,
        "steps": row.steps,
        "wall": row.seconds,
    }


def _shares(amounts: Sequence[_Amounts]) -> Shares:
    totals = {unit: total([values[unit] for _, values in amounts]) for unit in UNITS}
    grouped: dict[str, list[dict[str, float | None]]] = {}
    for name, values in amounts:
        grouped.setdefault(name, []).append(values)
    return {
        name: {
            unit: _ratio(total([values[unit] for values in group]), totals[unit]) for unit in UNITS
        }
        for name, group in grouped.items()
    }


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
