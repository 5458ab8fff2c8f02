"""Phase keys: equal keys mean equal weights, so a finished phase can be used again.

A key hashes what a phase starts from, the content of its data, and all of its configuration that
changes a number. Layout (world size, micro-batch, threads, paths) is provenance and stays out.
What was hashed is kept beside it, in words, so that two phases can be compared later.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from curriculum.config import Config, Phase
from curriculum.plan.graph import order, parents
from curriculum.plan.schedule import learning_rates

SCHEMA = 2

# what of a phase never reaches a number of training
_NOT_NUMERIC = (
    "after",
    "role",
    "micro_batch_size",
    "steps",
    "max_steps",
    "epochs",
    "schedule",
    "merge",
    "choice_eval",
)


@dataclass(frozen=True)
class KeyRecord:
    """What a key stands for: a phase of a plan, or (`phase` null) the weights a plan starts from.

    `parts` is hashed together with `parents`, the keys of what it continues. `told` is not: it puts
    into words what `parts` holds as a digest, under the same names.
    """

    plan: str
    phase: str | None
    parents: list[str]
    parts: dict[str, Any]
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return digest({"schema": SCHEMA, "parents": self.parents, **self.parts})


@dataclass(frozen=True)
class Content:
    """Files that a phase reads: the digest of their content, and that of each by its path."""

    digest: str
    files: dict[str, str] = field(default_factory=dict)


def phase_records(
    config: Config,
    origin: str,
    data: Mapping[str, Content],
    tokenizer: Content,
    code: Mapping[str, Content] = MappingProxyType({}),
) -> dict[str, KeyRecord]:
    """The record of every phase, in the order of the graph.

    `config` is scaled and every phase that trains has its `steps`. `origin` is the key of the
    initial weights; `data` the training files of each phase that trains; `tokenizer` tokenizer and
    chat template; `code` the files of a user's own objective or loss, of phases that have one.
    """
    above = parents(config.plan)
    records: dict[str, KeyRecord] = {}
    for name in order(config.plan):
        phase = config.plan.phases[name]
        continued = [records[parent].key for parent in above[name]] or [origin]
        if phase.is_merge:
            parts, told = _merge_parts(name, phase, above[name]), {}
        else:
            parts = _training_parts(config, name, data[name], tokenizer)
            told = {
                "rates": _rates_told(config, name),
                "data": data[name].files,
                "tokenizer": tokenizer.files,
            }
            if name in code:
                parts["code"], told["code"] = code[name].digest, code[name].files
        records[name] = KeyRecord(config.plan.name, name, continued, parts, told)
    return records


def to_json(key: str, chain: Mapping[str, KeyRecord]) -> dict[str, Any]:
    """A key with the records of what it stands for, as plain values."""
    return {"schema": SCHEMA, "key": key, "chain": {k: asdict(r) for k, r in chain.items()}}


def from_json(values: Mapping[str, Any]) -> dict[str, KeyRecord]:
    """The records of `to_json`. Raises `KeyError` or `TypeError` if the values are others."""
    return {key: KeyRecord(**record) for key, record in values["chain"].items()}


def digest(value: Any) -> str:
    """Twenty hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def merge_weights(phase: Phase, above: Sequence[str]) -> list[float]:
    """Shares of the parents of a merge, which sum to one."""
    given = phase.merge.weights if phase.merge is not None else None
    weights = [1.0 if given is None else given[parent] for parent in above]
    return [weight / sum(weights) for weight in weights]


def _merge_parts(name: str, phase: Phase, above: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "merge.weights": merge_weights(phase, above)}


def _training_parts(config: Config, name: str, data: Content, tokenizer: Content) -> dict[str, Any]:
    optim = {f"optim.{k}": v for k, v in asdict(config.optim).items() if k != "lr"}
    phase = {f"phase.{k}": v for k, v in _numeric(config.plan.phases[name]).items()}
    model = asdict(config.model)
    return {
        "name": name,  # seeds the order of its records
        **phase,
        "rates": _rates(config, name),
        "data": data.digest,
        "tokenizer": tokenizer.digest,
        "data.chunk_records": config.data.chunk_records,
        "data.chunk_windows": config.data.chunk_windows,
        "data.max_record_bytes": config.data.max_record_bytes,
        **optim,
        "model.router_loss": model["router_loss"],
        "model.lora": model["lora"],
        "model.embedding_dim": model["embedding_dim"],
        "engine.dtype": config.engine.dtype,
        "engine.compile": config.engine.compile,
        "seed": config.seed,
    }


def _numeric(phase: Phase) -> dict[str, Any]:
    values = {k: v for k, v in asdict(phase).items() if k not in _NOT_NUMERIC}
    values["data"] = {
        k: v for k, v in values["data"].items() if k not in ("sources", "heldout", "on_short")
    }
    values["data"]["weights"] = phase.data.weights
    return values


def _rates(config: Config, name: str) -> str:
    """Digest of the exact learning rate of every step, which also fixes their number."""
    steps = config.plan.phases[name].steps or 0
    rate = learning_rates(config, name)
    return digest([rate(step).hex() for step in range(steps)])


def _rates_told(config: Config, name: str) -> dict[str, Any]:
    """Where the rates come from, and the first and the last of them."""
    phase = config.plan.phases[name]
    steps, rate = phase.steps or 0, learning_rates(config, name)
    return {
        "steps": steps,
        "optim.lr": config.optim.lr,
        "schedule": asdict(phase.schedule or config.schedule),
        "first": rate(0),
        "last": rate(max(0, steps - 1)),
    }
