"""Typed schema of everything in `conf/` and `phases/`.

Hydra composes a tree of plain values; `load` turns it into these dataclasses. Unknown keys, wrong
types and values out of range are refused with the full dotted path, the value and the nearest
valid name. Fields carry no numbers that steer a run unless the number is a neutral default
(`null`, 1.0): the numbers themselves live in `conf/`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from curriculum.errors import UserError

_strict = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)

# Stands in data patterns for a `data.root` that is not given.
UNKNOWN_ROOT = "<data.root>"

Count = Annotated[int, Field(ge=1, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]

Role = Literal["foundation", "generative", "replay", "calibration"]
Task = Literal[
    "messages",
    "prompt_completion",
    "qa",
    "summarization",
    "planning",
    "instruction",
    "retrieval",
    "text",
    "choice",
]


@dataclass(config=_strict)
class PhaseData:
    """Where a phase's records lie and what happens to records that do not fit."""

    sources: list[str]
    heldout: list[str] = field(default_factory=list)
    on_bad_record: Literal["error", "skip"] = "error"
    on_over_long: Literal["error", "drop", "truncate_source"] = "truncate_source"
    on_short: Literal["error", "repeat"] = "error"
    on_unstable: Literal["refuse", "split"] = "refuse"
    loss_on: Literal["assistant", "last_assistant", "all"] = "assistant"


@dataclass(config=_strict)
class Retrieval:
    """InfoNCE settings of a retrieval phase: `documents` a query, the positive included."""

    temperature: Positive
    documents: Annotated[int, Field(ge=1, strict=True)]


@dataclass(config=_strict)
class Schedule:
    """Learning rate over steps. `scope: phase` runs the curve in each phase on its own."""

    kind: Literal["wsd", "cosine", "constant"]
    scope: Literal["plan", "phase"]
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    min_ratio: Fraction


@dataclass(config=_strict)
class Phase:
    """One node of the plan: an objective, its data, its geometry, its length, its policy."""

    objective: str | dict[str, Any]
    task: Task
    role: Role
    batch_size: Count
    seq_len: Count
    data: PhaseData
    after: str | list[str] | None = None
    steps: Count | None = None
    max_steps: Count | None = None
    epochs: Positive | None = None
    micro_batch_size: Count | None = None
    lr_scale: Positive = 1.0
    packing: Literal["auto", "best_fit", "none"] = "auto"
    optimizer_state: Literal["carry", "reset"] = "carry"
    retrieval: Retrieval | None = None
    schedule: Schedule | None = None

    @property
    def objective_name(self) -> str:
        """Registered name, or the import path of a user's own class."""
        if isinstance(self.objective, str):
            return self.objective
        return str(self.objective.get("_target_"))


@dataclass(config=_strict)
class Plan:
    """An ordered mapping of phases that ends in one model."""

    name: str
    phases: dict[str, Phase]
    init_from: str | None = None
    gates: list[Any] = field(default_factory=list)


@dataclass(config=_strict)
class Profile:
    """Where and how large. `corpus: demo` generates the embedded corpus under `data.root`."""

    name: str
    init_from: str | None
    corpus: Literal["demo"] | None


@dataclass(config=_strict)
class Parameters:
    """Exact parameter counts, each tied tensor once.

    `embedding`: input embedding, and output head where untied. `active`: `total` less the experts
    that a token does not visit; null where there are none.
    """

    total: Count
    embedding: Count
    active: Count | None = None


@dataclass(config=_strict)
class Model:
    """A `transformers` causal LM by config (random weights) or by path."""

    name: str
    path: str | None
    config: dict[str, Any] | None
    tokenizer: str | None
    chat_template: str | None
    parameters: Parameters | None


@dataclass(config=_strict)
class Optim:
    """AdamW (Loshchilov and Hutter, 2019). No weight decay on norms and biases."""

    name: Literal["adamw"]
    lr: Positive
    betas: tuple[Fraction, Fraction]
    eps: Positive
    weight_decay: NonNegative
    max_grad_norm: Positive | None


@dataclass(config=_strict)
class Engine:
    """How a step is computed. Nothing here changes what a step is."""

    dtype: Literal["float32", "bfloat16"]
    threads: Count | None
    micro_batch_tokens: Count
    head_chunk_rows: Count
    replicate: Count
    max_nonfinite_steps: Count
    timeout_seconds: Count


@dataclass(config=_strict)
class Scale:
    """Multipliers of the composed plan's values, rounded, at least 1."""

    steps: Positive
    batch_size: Positive
    seq_len: Positive


@dataclass(config=_strict)
class Budget:
    scale: Scale


@dataclass(config=_strict)
class Data:
    """`chunk_records`: records of the permutation that are packed together."""

    root: str | None
    chunk_records: Count


@dataclass(config=_strict)
class Probes:
    """Forward-only evaluations. A limit of null means all held-out records.

    `phase_end_fraction`: part of the limits that is used at the end of a phase that is not the last
    one; start and end of a plan use all.
    """

    at_start: bool
    at_phase_end: bool
    phase_end_fraction: Fraction
    perplexity_windows: Count | None
    retrieval_queries: Count | None
    generation_records: Count | None
    generation_max_tokens: Count
    batch_tokens: Count


@dataclass(config=_strict)
class Checks:
    """Codes to silence, and the limits of the checks, in shares of nominal tokens."""

    ignore: list[str]
    max_replay_share: Fraction
    max_phase_share: Fraction


@dataclass(config=_strict)
class Checkpoint:
    """`every_steps` is scaled like steps; phase ends are always saved."""

    every_steps: Count
    keep_last: Count


@dataclass(config=_strict)
class Tracking:
    """`uri: null` is a sqlite file in the run directory; `enabled: false` logs to files only."""

    enabled: bool
    uri: str | None
    experiment: str
    flush_steps: Count


@dataclass(config=_strict)
class Directory:
    dir: str


@dataclass(config=_strict)
class Config:
    """The whole configuration of one run."""

    profile: Profile
    plan: Plan
    model: Model
    optim: Optim
    schedule: Schedule
    engine: Engine
    budget: Budget
    data: Data
    probes: Probes
    checks: Checks
    checkpoint: Checkpoint
    tracking: Tracking
    run: Directory
    store: Directory
    cache: Directory
    seed: NonNegativeInt
    dry_run: bool | Literal["data"]
    output: Literal["table", "json"]


def load(values: Mapping[str, Any]) -> Config:
    """The typed configuration, or a `UserError` that names every bad key, one a line."""
    try:
        return TypeAdapter(Config).validate_python(values)
    except ValidationError as error:
        rules: dict[str, list[str]] = {}
        for detail in error.errors(include_url=False):
            place, rule = _describe(detail)
            rules.setdefault(place, []).append(rule)
        lines = [f"{place}: {' or '.join(dict.fromkeys(r))}" for place, r in rules.items()]
        raise UserError("\n".join(lines)) from None


def _describe(detail: Mapping[str, Any]) -> tuple[str, str]:
    """`path=value`, and the rule with the nearest valid name. Members of a union share a place."""
    location = tuple(detail["loc"])
    siblings = _valid_names(location[:-1])
    path = ".".join(str(part) for part in location if _is_key(part))
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        name = str(location[-1])
        near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(siblings)}"
        return f"{path}={detail['input']!r}", f"unknown key; {hint}"
    if detail["type"] == "missing":
        return path, "required, but not given"
    return f"{path}={detail['input']!r}", detail["msg"][0].lower() + detail["msg"][1:]


def _is_key(part: Any) -> bool:
    """False for the labels that pydantic adds for members of a union."""
    return isinstance(part, int) or not (
        part in ("str", "int", "float", "bool", "none") or "[" in part
    )


def _valid_names(location: tuple[Any, ...]) -> list[str]:
    """Field names allowed at a dotted place of the schema."""
    here: Any = Config
    for part in location:
        here = _step_into(here, part)
    return [f.name for f in fields(here)] if is_dataclass(here) else []


def _step_into(here: Any, part: Any) -> Any:
    if is_dataclass(here):
        here = get_type_hints(here).get(part)
    elif get_origin(here) is dict:
        here = get_args(here)[1]
    options = [option for option in get_args(here) if is_dataclass(option)]
    return options[0] if get_origin(here) is not dict and options else here
