"""What all probes share: the result, the held-out sets of a plan, and an even spread of records.

A probe prepares once (reads, renders and tokenizes held-out records) and then runs as often as it
is asked to, with forwards only. Nothing in this package draws a random number: evaluation leaves
every random stream as it was.
"""

import json
import logging
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from curriculum.config import Config, Model, Phase
from curriculum.data.choice_data import data_files
from curriculum.data.records import BadRecord, Record, parse
from curriculum.data.sources import Source
from curriculum.errors import RunError

if TYPE_CHECKING:
    import numpy as np

    from curriculum.data.packed_choice import Bin
    from curriculum.data.windows import Window

Status = Literal["ok", "absent", "failed"]

log = logging.getLogger(__name__)

_GOLDEN = (math.sqrt(5) - 1) / 2


class Evaluator(Protocol):
    """Forward-only access to the model. Every rank calls the same; all ranks get equal results."""

    rank: int

    def losses(self, windows: "Sequence[Window]") -> tuple[float, float]:
        """(sum of weighted negative log-likelihoods in nats, sum of weights)."""
        ...

    def embed(self, texts: Sequence[Sequence[int]]) -> "np.ndarray":
        """float32 [N, hidden], L2-normalised."""
        ...

    def choice_logits(self, bins: "Sequence[Bin]") -> "list[np.ndarray]":
        """Of each bin, float32 as its `choice_ids`."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop_ids: Collection[int]
    ) -> list[list[int]]:
        """Greedy: new tokens only, the stop token included where one was produced."""
        ...


@dataclass(frozen=True)
class ProbeResult:
    """What one probe found. `name` is unique in a plan and safe as a file name.

    `phase` is the phase whose held-out data was measured, `*` for a total over phases. `values`
    holds finite numbers only. `reason` says why a probe is `absent` (nothing to measure) or
    `failed`, or what an `ok` one left out. `rows`: detail per example, may be empty.
    """

    name: str
    phase: str
    values: dict[str, float]
    rows: list[dict[str, Any]] = field(default_factory=list)
    kind: str = ""
    objective: str = ""
    status: Status = "ok"
    reason: str | None = None


class Prepared(Protocol):
    """One probe on one held-out set, ready to run."""

    name: str
    phase: str
    kind: str
    objective: str
    reason: str | None  # why there is nothing to measure; None: run it

    def run(self, evaluator: Evaluator) -> ProbeResult: ...


@dataclass(frozen=True)
class Absent:
    """A probe with nothing to measure, and why."""

    name: str
    phase: str
    kind: str
    objective: str
    reason: str

    def run(self, evaluator: Evaluator) -> ProbeResult:
        return ProbeResult(
            self.name, self.phase, {}, [], self.kind, self.objective, "absent", self.reason
        )


@dataclass(frozen=True)
class Heldout:
    """The held-out records of one phase. `reason` says why there are none; `cache_dir` is where
    files of other formats are unpacked."""

    phase: str
    settings: Phase
    objective: str
    files: tuple[Path, ...]
    reason: str | None
    cache_dir: str

    def absent(self, kind: str, reason: str) -> Absent:
        return Absent(probe_name(self.phase, kind), self.phase, kind, self.objective, reason)


def measured_as(phase: Phase) -> str | None:
    """`generative`, `causal`, `retrieval` or `choice`; None for a merge, which has no data.

    A user's own objective goes by its task.
    """
    name = phase.objective_name
    if name == "merge":
        return None
    if phase.task in ("retrieval", "choice"):
        return phase.task
    if name in ("generative", "causal"):
        return name
    return "causal" if phase.task == "text" else "generative"


def heldout_sets(config: Config, objectives: Collection[str]) -> list[Heldout]:
    """One `Heldout` for each set that differs, under the first phase that names it.

    Two phases share a set when patterns, task, `seq_len`, objective and all that decides which
    tokens carry loss are alike.
    """
    found: dict[Any, Heldout] = {}
    for name, phase in config.plan.phases.items():
        objective = measured_as(phase)
        if objective is None or objective not in objectives:
            continue
        data = phase.data
        # A phase without patterns has nothing in common with another one: each is reported.
        key: Any = name
        if data.heldout:
            same = (data.loss_on, data.on_over_long, data.on_bad_record, data.on_unstable)
            own = repr(phase.loss) if objective == "choice" else None  # it is measured, too
            key = (objective, phase.task, phase.seq_len, tuple(data.heldout), same, own)
        if key not in found:
            files, reason = _files(phase)
            found[key] = Heldout(name, phase, objective, files, reason, config.cache.dir)
    return list(found.values())


def _files(phase: Phase) -> tuple[tuple[Path, ...], str | None]:
    patterns = phase.data.heldout
    if not patterns:
        return (), "data.heldout is empty"
    files, missing = data_files(phase, patterns)
    if not files:
        return (), f"data.heldout matches no file: {', '.join(missing)}"
    if all(map(_is_blank, files)):
        return (), f"data.heldout holds no record: {', '.join(str(path) for path in files)}"
    return tuple(files), None


def _is_blank(path: Path) -> bool:
    """True if the file holds nothing but white space; reads up to the first record only."""
    with path.open("rb") as file:
        return not any(line.strip() for line in file)


def read_records(held: Heldout, limit: int | None = None) -> Iterator[tuple[str, Record]]:
    """(address, record) of the held-out files, `limit` of them evenly spread (None: all).

    A bad record is skipped and told where the phase says `on_bad_record: skip`, else a `RunError`.
    """
    source = Source(held.files, held.cache_dir)
    skipped, strict = 0, held.settings.data.strict
    for index in spread(len(source), limit):
        address, line = source[index]
        try:
            yield str(address), parse(held.settings.task, line, address, strict=strict)
        except BadRecord as error:
            if held.settings.data.on_bad_record != "skip":
                raise RunError(f"{held.phase}, held-out data: {error}") from None
            skipped += 1
    if skipped:
        log.warning("%s: %d bad held-out records skipped", held.phase, skipped)


def model_values(model: Model) -> dict[str, Any]:
    """The `transformers` config of a model as plain values; empty if it has none yet."""
    if model.path is None:
        return model.config or {}
    file = Path(model.path) / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def probe_name(phase: str, kind: str) -> str:
    """`retrieval_school.retrieval`; characters unfit for a file name become `_`."""
    safe = "".join(c if c.isalnum() or c in "._~-" else "_" for c in phase)
    return f"{safe}.{kind}"


def spread(count: int, limit: int | None) -> list[int]:
    """`limit` distinct indices of `range(count)` in order, evenly spread; None: all.

    One index from each of `limit` equal stretches, at an offset that follows the golden ratio: a
    plain stride would see only one kind of record in a file that alternates with its period.
    """
    if limit is None or limit >= count:
        return list(range(count))
    chosen = []
    for part in range(limit):
        start, end = part * count // limit, (part + 1) * count // limit
        chosen.append(start + int((part + 1) * _GOLDEN % 1 * (end - start)))
    return chosen


def only_finite(result: ProbeResult) -> ProbeResult:
    """The result without NaN and infinite values; what was taken out is told in `reason`."""
    bad = {key: value for key, value in result.values.items() if not math.isfinite(value)}
    if not bad:
        return result
    told = ", ".join(f"{key} is {value}" for key, value in bad.items())
    return replace(
        result,
        values={key: value for key, value in result.values.items() if key not in bad},
        status="failed",
        reason=f"{result.reason}; {told}" if result.reason else told,
    )
