"""Phase keys: equal keys mean equal weights, so a finished phase can be used again.

A key hashes the parent's key, the content of the phase's data, and all of its configuration that
changes a number. Layout (world size, micro-batch, threads, paths) is provenance and stays out.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from curriculum.config import Config, Phase
from curriculum.plan.graph import order, parents
from curriculum.plan.schedule import learning_rates

SCHEMA = 1

# what of a phase never reaches a number of training
_NOT_NUMERIC = ("after", "role", "micro_batch_size", "steps", "max_steps", "epochs", "schedule")


def phase_keys(
    config: Config, origin: str, data: Mapping[str, str], tokenizer: str
) -> dict[str, str]:
    """Key of every phase, in the order of the graph.

    `config` is scaled and every phase has its `steps`. `origin` identifies the initial weights,
    `data` the content of each phase's training files, `tokenizer` tokenizer and chat template.
    """
    above = parents(config.plan)
    keys: dict[str, str] = {}
    model = asdict(config.model)
    for name in order(config.plan):
        ancestors = [keys[parent] for parent in above[name]] or [origin]
        keys[name] = digest(
            {
                "schema": SCHEMA,
                "parents": ancestors,
                "name": name,  # seeds the order of its records
                "phase": _numeric(config.plan.phases[name]),
                "rates": _rates(config, name),
                "data": data[name],
                "tokenizer": tokenizer,
                "chunks": [config.data.chunk_records, config.data.chunk_windows],
                "optim": {k: v for k, v in asdict(config.optim).items() if k != "lr"},
                "model": [model["router_loss"], model["lora"]],
                "dtype": config.engine.dtype,
                "compiled": config.engine.compile,
                "seed": config.seed,
            }
        )
    return keys


def digest(value: Any) -> str:
    """Twenty hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


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
