"""Typed schema of everything in `conf/` and `phases/`.

Hydra composes a tree of plain values; `load` turns it into these dataclasses. Unknown keys, wrong
types and values out of range are refused with the full dotted path, the value and the nearest
valid name. Fields carry no numbers that steer a run unless the number is a neutral default
(`null`, 1.0): the numbers themselves live in `conf/`.
"""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from curriculum.errors import UserError
from curriculum.naming import nearest

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
class WeightedSource:
    """A path or glob whose records make up `weight` of the mixture, relative to the others."""

    path: str
    weight: Positive


@dataclass(config=_strict)
class PhaseData:
    """Where a phase's records lie and what happens to records that do not fit.

    Either every source has a weight or none has. Without weights all records count alike. With
    them, `on_exhausted` says what the end of a source means: `stop` ends the mixture with the first
    source that is used up, `repeat` starts it again until the last one is.

    `spellings`, `answer_prefix`: of choice records (docs/choice.md): how a choice may be written
    behind its prompt, null as it stands, and what the assistant says before it.
    """

    sources: list[str | WeightedSource]
    heldout: list[str] = field(default_factory=list)
    on_exhausted: Literal["stop", "repeat"] = "stop"
    on_bad_record: Literal["error", "skip"] = "error"
    strict: bool = False
    on_over_long: Literal["error", "drop", "truncate_source"] = "truncate_source"
    on_short: Literal["error", "repeat"] = "error"
    on_unstable: Literal["refuse", "split"] = "refuse"
    loss_on: Literal["assistant", "last_assistant", "all"] = "assistant"
    spellings: list[str] | None = None
    answer_prefix: str = ""

    @property
    def patterns(self) -> list[str]:
        """Paths and globs of the sources, without their weights."""
        return [s if isinstance(s, str) else s.path for s in self.sources]

    @property
    def weights(self) -> list[float] | None:
        """One weight a source, or None if none has one."""
        weights = [s.weight for s in self.sources if isinstance(s, WeightedSource)]
        return weights or None

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        if self.weights and len(self.weights) < len(self.sources):
            plain = next(s for s in self.sources if isinstance(s, str))
            raise ValueError(f"sources: {plain!r} has no weight while others have one")
        return self


@dataclass(config=_strict)
class Retrieval:
    """InfoNCE settings of a retrieval phase: `documents` a query, the positive included.

    Embeddings are of each text's `last` token or the `mean` over its tokens, after the final norm
    (`layer: -1`) or of the k-th decoder layer, counted from 1.
    `symmetric`: half of a query's loss is then its positive's, told from the step's other queries.
    """

    temperature: Positive
    documents: Annotated[int, Field(ge=1, strict=True)]
    symmetric: bool = False
    layer: Literal[-1] | Count = -1
    pooling: Literal["last", "mean"] = "last"


@dataclass(config=_strict)
class Loss:
    """Additions to the cross entropy of tokens; `engine.head.cross_entropy` has the formulas.

    `label_smoothing`: share of each target that is spread evenly over the vocabulary. `z_loss`:
    weight of the squared log normalizer, which keeps logits from drifting.

    Of a choice phase `import_path` names the loss function, null the cross entropy to the target
    distribution, and `kwargs` is what it gets besides; `curriculum.losses` has the contract.
    """

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    z_loss: NonNegative = 0.0
    import_path: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(config=_strict)
class Schedule:
    """Learning rate over steps. `scope: phase` runs the curve in each phase on its own."""

    kind: Literal["wsd", "cosine", "constant"]
    scope: Literal["plan", "phase"]
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    min_ratio: Fraction


@dataclass(config=_strict)
class Merge:
    """How a phase of `objective: merge` averages the weights of its parents.

    `weights`: of every parent, relative to the others; null means that all count alike.
    """

    weights: dict[str, Positive] | None = None


@dataclass(config=_strict)
class ChoiceEval:
    """Forward-only evaluations of packed choice sets, beside training.

    `sets`: by name, a directory of a packed evaluation set, or files of choice records, which are
    packed first. Due before a phase's first step (`at_start`), after every `interval` steps of it
    (scaled like steps) and after its last one (`at_end`). `import_path`: the function that scores
    the predictions, with `kwargs`; null only writes them. No set means no evaluation.
    """

    sets: dict[str, str] = field(default_factory=dict)
    interval: Count | None = None
    at_start: bool = False
    at_end: bool = False
    import_path: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


# What a merge may leave out, since it trains on nothing.
_UNUSED_BY_A_MERGE = {
    "task": "text",
    "role": "generative",
    "batch_size": 1,
    "seq_len": 1,
    "data": {"sources": []},
}


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
    loss: Loss = field(default_factory=Loss)
    schedule: Schedule | None = None
    merge: Merge | None = None
    choice_eval: ChoiceEval | None = None

    @property
    def objective_name(self) -> str:
        """Registered name, or the import path of a user's own class."""
        if isinstance(self.objective, str):
            return self.objective
        return str(self.objective.get("_target_"))

    @property
    def is_merge(self) -> bool:
        """True for a phase that averages its parents and takes no step."""
        return self.objective == "merge"

    @model_validator(mode="before")
    @classmethod
    def _complete_merge(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("objective") == "merge":
            return _UNUSED_BY_A_MERGE | dict(values)
        return values


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
class Lora:
    """Low-rank adapters by `peft`: `alpha / r` times B A is added to each adapted matrix.

    `targets`: `all-linear` (every linear layer but the head), or ends of module names.
    """

    r: Count
    alpha: Positive
    dropout: Annotated[float, Field(ge=0, lt=1)]
    targets: str | list[str]


@dataclass(config=_strict)
class Model:
    """A `transformers` causal LM by config (random weights) or by path.

    `router_loss`: of mixture-of-experts models; null means what the model's own config says
    (`output_router_logits`). `lora`: adapters are trained instead of the weights; null means none.
    `embedding_dim`: texts are embedded through a trained projection of that size; null means none.
    """

    name: str
    path: str | None
    config: dict[str, Any] | None
    tokenizer: str | None
    chat_template: str | None
    parameters: Parameters | None
    router_loss: bool | None = None
    lora: Lora | None = None
    embedding_dim: Count | None = None


@dataclass(config=_strict)
class Optim:
    """AdamW, Muon or SignSGD (docs/optimizers.md). No weight decay on norms and biases.

    `betas`, `eps`: of AdamW; under `muon` of what is no hidden matrix, at `lr * adamw_lr_ratio`.
    `momentum`: of Muon, and of SignSGD, where 0 means none. `adjust_lr_fn`, `nesterov` and `ns_*`
    (Newton-Schulz) are Muon's. What an optimizer does not use is null.
    """

    name: Literal["adamw", "muon", "signsgd"]
    lr: Positive
    weight_decay: NonNegative
    max_grad_norm: Positive | None
    betas: tuple[Fraction, Fraction] | None = None
    eps: Positive | None = None
    momentum: Fraction | None = None
    nesterov: bool | None = None
    adjust_lr_fn: Literal["original", "match_rms_adamw"] | None = None
    adamw_lr_ratio: Positive | None = None
    ns_coefficients: tuple[float, float, float] | None = None
    ns_steps: Count | None = None
    ns_eps: Positive | None = None
    ns_dtype: Literal["float32", "bfloat16"] | None = None

    @model_validator(mode="after")
    def _all_used_and_given(self) -> Self:
        common = {"name", "lr", "weight_decay", "max_grad_norm"}
        used = {
            "adamw": {"betas", "eps"},
            "muon": {f.name for f in fields(type(self))} - common,
            "signsgd": {"momentum"},
        }[self.name]
        given = {f.name for f in fields(type(self)) if getattr(self, f.name) is not None} - common
        if missing := sorted(used - given):
            raise ValueError(f"{self.name} needs {', '.join(missing)}; give a number for each")
        if extra := sorted(given - used):
            raise ValueError(f"{self.name} does not use {', '.join(extra)}; leave it out")
        return self


@dataclass(config=_strict)
class Engine:
    """How a step is computed. Nothing here changes what a step is.

    `activation_checkpointing`: activations of all layers (`full`) or of every second one
    (`selective`) are computed again in the backward. `compile`: each block by `torch.compile`.
    `world_size`: ranks that a dry run works out memory and time for, and that a run then has to
    have; null means as many as are started.
    """

    dtype: Literal["float32", "bfloat16"]
    threads: Count | None
    micro_batch_tokens: Count
    head_chunk_rows: Count
    replicate: Count
    max_nonfinite_steps: Count
    timeout_seconds: Count
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    compile: bool = False
    world_size: Count | None = None


@dataclass(config=_strict)
class Scale:
    """Multipliers of the composed plan's values, rounded, at least 1."""

    steps: Positive
    batch_size: Positive
    seq_len: Positive


@dataclass(config=_strict)
class Budget:
    """`peak_flops`: operations a second of one device at best; `utilisation`: the part of them that
    training is expected to use. Both only for the time that a dry run states."""

    scale: Scale
    peak_flops: Positive | None = None
    utilisation: Annotated[float, Field(gt=0, le=1)] | None = None


@dataclass(config=_strict)
class Data:
    """`chunk_records`: records that are packed and shuffled together; null means as many as fill
    about `chunk_windows` windows, which leaves half a window in so many empty.

    `workers`: processes that read, render and tokenize; null means one a core.
    `max_record_bytes`: of JSON; a longer record counts as bad.
    """

    root: str | None
    chunk_records: Count | None
    chunk_windows: Count
    max_record_bytes: Count
    workers: Count | None


@dataclass(config=_strict)
class Probes:
    """Forward-only evaluations. A limit of null means all held-out records.

    `phase_end_fraction`: part of the limits that is used at the end of a phase that is not the last
    one; start and end of a plan use all. `calibration_bins`: of confidence, in the calibration
    error of choices.
    """

    at_start: bool
    at_phase_end: bool
    phase_end_fraction: Fraction
    perplexity_windows: Count | None
    retrieval_queries: Count | None
    generation_records: Count | None
    generation_max_tokens: Count
    batch_tokens: Count
    choice_windows: Count | None = None
    calibration_bins: Count = 15


@dataclass(config=_strict)
class Checks:
    """Codes to silence, and the limits of the checks, in shares of nominal tokens."""

    ignore: list[str]
    max_replay_share: Fraction
    max_phase_share: Fraction


@dataclass(config=_strict)
class Audit:
    """Limits of the data audit, in shares of records unless said otherwise.

    `dominant_target_*`: of all targets, by the most frequent one. `max_question_truncated_share`:
    above it the finding is an error. `min_paraphrases`: wordings that abstentions should have, and
    `max_paraphrase_ratio`: uses of the most frequent one, in averages. `min_reached_share`: of a
    source, by the steps of its phase. `min_trained_share`: of tokens, that carry loss.
    `examples`: addresses that a finding shows.
    """

    dominant_target_error: Fraction
    dominant_target_warning: Fraction
    max_question_truncated_share: Fraction
    max_abstention_share: Fraction
    min_paraphrases: Count
    max_paraphrase_ratio: Positive
    max_over_long_share: Fraction
    min_reached_share: Fraction
    min_trained_share: Fraction
    examples: Count


@dataclass(config=_strict)
class Checkpoint:
    """When to save, besides at the end of every phase, and what to keep.

    `every_steps` counts within a phase, `every_minutes` since the last save; null means never.
    Kept are the `keep_last` newest, the first at or after every multiple of `keep_every` (steps of
    the plan), and with `keep_phase_ends` those at the end of a phase, which lie in the store
    anyway. `every_steps` and `keep_every` are scaled like steps.
    """

    every_steps: Count | None
    keep_last: Count
    every_minutes: Positive | None = None
    keep_every: Count | None = None
    keep_phase_ends: bool = False


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
class Run(Directory):
    """Where a run lies, and what happens where one has been before.

    `fresh`: start anew; what lies in `dir` is kept under another name. `max_same_failures`: starts
    that fail alike before the next one is refused; null means never. `stale_seconds`: without a
    sign of life from another host until its lock counts as left behind; null means never.
    `grace_seconds`: for a process that a signal asks to stop and that hangs; null means no limit.
    """

    fresh: bool = False
    max_same_failures: Count | None = None
    stale_seconds: Positive | None = None
    grace_seconds: Positive | None = None


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
    audit: Audit
    checkpoint: Checkpoint
    tracking: Tracking
    run: Run
    store: Directory
    cache: Directory
    seed: NonNegativeInt
    dry_run: bool | Literal["data"]
    output: Literal["table", "json"]
    choice_eval: ChoiceEval | None = None

    def choice_eval_of(self, phase: str) -> ChoiceEval | None:
        """A phase's own choice evals, else those of the run; None where no set is named."""
        own = self.plan.phases[phase].choice_eval
        settings = self.choice_eval if own is None else own
        return settings if settings is not None and settings.sets else None


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
        hint = nearest(name, siblings, "valid keys:")
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
