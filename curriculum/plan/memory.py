"""Memory of one rank while a phase trains, in bytes, from the plan and the model's shapes alone.

Weights, gradients and optimizer states are float32 and sharded by rows over `shards` ranks
(FSDP2, `engine.model.wrap`); with `engine.replicate` every so many ranks hold all of it together.
The figures are those of the fullest rank, the first one: rows are dealt out rounded up, so that of
15 experts on 64 ranks it holds one, and others none.

    parameters   4 bytes x share
    gradients    4 x share; 4 x all trained weights where a rank takes several micro-batches, whose
                 gradients are added up before they are sent; and for one group at a time its
                 gradients in the compute dtype with the float32 buffer of their reduction
    optimizer    AdamW 8 x share; Muon 4 x share of hidden matrices and 8 of the rest; SignSGD 4 x
                 share, 0 without momentum
    gathered     in the compute dtype: the root (embedding, final norm, head), and the largest block
                 with the one that is fetched meanwhile. Shares are padded to be equal
    activations  what the blocks keep for the backward of one micro-batch (`plan.activations`), less
                 where `engine.activation_checkpointing` says so; and the larger of what the head
                 needs and what the backward of one block needs

`total` sums these up. They do not stand at their height all at once (gradients come while
activations go), so `peak` is the most that is held at one of some moments: in the head, in the
backward of the last block and behind it, at the end of the backward, in the optimizer's step.
Sources: Rajbhandari et al., 2020, "ZeRO" (stage 3); the code of FSDP2 and of the engine. Shares of
weights and optimizer are exact, the rest is an estimate (docs/performance.md says how far off it
was). Not counted: what the libraries and the device's context take, the allocator's fragmentation,
data, and the copy on the host that a save makes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from curriculum.config import Config, Engine, Phase
from curriculum.plan.activations import WIDE, around, at_work, kept
from curriculum.plan.budget import micro_batch_size, texts_per_window
from curriculum.plan.decoder import Decoder, Unknown, decoder
from curriculum.plan.parameters import (
    Tensor,
    Weights,
    adapters,
    is_embedding,
    is_hidden_matrix,
    of_decoder,
    of_directory,
    saved_config,
)

_BYTES = {"float32": 4, "bfloat16": 2}
MUON_BATCH = 1 << 22  # elements that Muon makes orthogonal at once


@dataclass(frozen=True)
class Model:
    """The model that a plan trains. `decoder` None: its activations are unknown, `why` says so."""

    weights: Weights
    trained: Weights
    decoder: Decoder | None
    why: str | None

    @property
    def held(self) -> tuple[Tensor, ...]:
        """All weights, adapters among them."""
        every = self.weights.every
        return every if self.trained is self.weights else (*every, *self.trained.every)


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest rank in one phase; None where they are not known."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int | None
    peak: int | None

    @property
    def total(self) -> int | None:
        """All parts at their height."""
        if self.activations is None:
            return None
        known = self.parameters + self.gradients + self.optimizer + self.gathered
        return known + self.activations


def model_of(config: Config) -> Model:
    """Shapes of the model that a run of this configuration builds. Raises `Unknown`.

    Of `plan.init_from` where that is a Hugging Face directory, else of `model.path` or
    `model.config`; by the headers of safetensors files where there are any.
    """
    start = Path(config.plan.init_from) if config.plan.init_from else None
    path = Path(config.model.path) if config.model.path else None
    directory = start if start and (start / "config.json").is_file() else path
    described = config.model.config if directory is None else saved_config(directory)
    if described is None:
        where = f"{directory}: no config.json" if directory else f"model={config.model.name}"
        raise Unknown(f"{where}; give model.path=DIR (a Hugging Face directory)")
    found, why = None, None
    try:
        found = decoder(described)
    except Unknown as unknown:
        why = str(unknown)
    weights = None
    if directory is not None:
        tied = found.tied if found else bool(described.get("tie_word_embeddings"))
        weights = of_directory(directory, tied)
    if weights is None:
        if found is None:
            raise Unknown(f"{why}; give model.path=DIR with safetensors files, which say the sizes")
        weights = of_decoder(found)
    if config.model.embedding_dim is not None:
        shape = (config.model.embedding_dim, int(described.get("hidden_size") or 1))
        root = (*weights.root, Tensor("embedding_head.weight", shape))
        weights = replace(weights, root=root)
    lora = config.model.lora
    return Model(weights, weights if lora is None else adapters(weights, lora), found, why)


def phase_memory(config: Config, phase: Phase, model: Model, world: int, density: float) -> Memory:
    """Memory of a phase on `world` ranks. `density`: share of its tokens that carry loss."""
    shards, compute = world // config.engine.replicate, _BYTES[config.engine.dtype]
    trained = model.trained.every
    micro, tokens = micro_batches(config.engine, phase, world)
    adding = micro > 1
    groups = _groups(model)
    root, blocks = groups[-1], groups[:-1]
    block = max((_padded(group, shards) for group in blocks), default=0) * compute
    gathered_root = _padded(root, shards) * compute
    gathered = gathered_root + (2 if shards > 1 else 1) * block
    sharded = WIDE * _share(trained, shards)
    growing = WIDE * sum(tensor.size for tensor in trained) if adding else 0
    ends = [*model.trained.blocks, model.trained.root]
    buffers = [_reduction(group, shards, 0 if adding else compute) for group in ends]
    parameters, optimizer = WIDE * _share(model.held, shards), _optimizer(config, model, shards)
    gradients = max(sharded, growing) + max(buffers)
    head_gradient = compute * _head_size(model) if _uses_head(phase) else 0
    # the backward ends with the gradients of embedding and head, and a block's still on its way
    waiting = growing or sharded - WIDE * _share(model.trained.root, shards)
    block_sums = max((WIDE * _padded(group, shards) for group in model.trained.blocks), default=0)
    peaks = [gathered_root + waiting + 2 * head_gradient + block_sums]
    peaks.append(max(sharded, growing) + buffers[-1])
    peaks.append(sharded + _step_work(config, model, shards))
    activations = None
    if model.decoder is not None:
        kept_bytes, last = _kept(config.engine, phase, model.decoder, compute, tokens)
        rows = ceil(tokens * density)
        head = _head(config, phase, model.decoder, compute, rows)
        work = tokens * max(at_work(model.decoder, each, compute) for each in model.decoder.layers)
        backward = head_gradient + work + last.again
        activations = kept_bytes + max(head, backward)
        fetched = block if shards > 1 else 0
        peaks.append(gathered_root + fetched + growing + kept_bytes + head)
        peaks.append(gathered + growing + kept_bytes + backward)
        done = kept_bytes - last.kept
        peaks.append(gathered_root + fetched + growing + done + head_gradient + max(buffers[:-1]))
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        gathered=gathered,
        activations=activations,
        peak=None if activations is None else parameters + optimizer + max(peaks),
    )


def micro_batches(engine: Engine, phase: Phase, world: int) -> tuple[int, int]:
    """Micro-batches of a step on the busiest rank, and the tokens of the largest at most."""
    windows = ceil(phase.batch_size / world)
    size = min(micro_batch_size(phase, engine), windows)
    return ceil(windows / size), size * texts_per_window(phase) * phase.seq_len


def _groups(model: Model) -> list[tuple[Tensor, ...]]:
    """What is gathered together: the blocks, and the root last; adapters lie in their blocks."""
    blocks = list(model.weights.blocks)
    if model.trained is not model.weights:
        pairs = zip(blocks, model.trained.blocks, strict=True)
        blocks = [(*frozen, *added) for frozen, added in pairs]
    return [*blocks, model.weights.root]


def _share(tensors: Iterable[Tensor], shards: int) -> int:
    return sum(tensor.share(shards) for tensor in tensors)


def _padded(tensors: Iterable[Tensor], shards: int) -> int:
    return shards * _share(tensors, shards)


def _reduction(group: Iterable[Tensor], shards: int, compute: int) -> int:
    """A group's gradients before they are summed over ranks, and the float32 buffer for that.

    On one rank the sum is a division, into another buffer, and the gradients are gone by then.
    """
    group = tuple(group)
    summed = WIDE * _padded(group, shards)
    whole = compute * sum(tensor.size for tensor in group)
    return summed + (whole if shards > 1 else max(whole, summed))


def _optimizer(config: Config, model: Model, shards: int) -> int:
    trained = model.trained.every
    share = WIDE * _share(trained, shards)
    match config.optim.name:
        case "adamw":
            return 2 * share
        case "muon":
            return 2 * share - WIDE * _share(_matrices(model), shards)
        case "signsgd":
            return share if config.optim.momentum else 0


def _step_work(config: Config, model: Model, shards: int) -> int:
    """What the optimizer's step holds for itself: AdamW is fused, the others form their updates."""
    match config.optim.name:
        case "adamw":
            return 0
        case "muon":
            narrow = _BYTES[config.optim.ns_dtype or "float32"]
            copies = (narrow < WIDE) + (3 if shards > 1 else 1)
            update = (WIDE + copies * narrow) * _share(_matrices(model), shards)
            return update + 2 * narrow * MUON_BATCH
        case "signsgd":
            return WIDE * _share(model.trained.every, shards)


def _matrices(model: Model) -> list[Tensor]:
    return [t for block in model.trained.blocks for t in block if is_hidden_matrix(t)]


def _uses_head(phase: Phase) -> bool:
    return phase.objective_name != "retrieval"


def _is_tied(model: Model) -> bool:
    return sum(is_embedding(tensor.name) for tensor in model.weights.root) == 1


def _head_size(model: Model) -> int:
    """Elements of the head's gradient; none where its weight is frozen."""
    sizes = [tensor.size for tensor in model.trained.root if is_embedding(tensor.name)]
    return max(sizes, default=0)


@dataclass(frozen=True)
class _Last:
    """Of the last block: what it keeps from the forward on, and what it adds if computed again.

    Another block is computed again once as much of the blocks behind it is gone.
    """

    kept: int
    again: int


def _kept(
    engine: Engine, phase: Phase, model: Decoder, compute: int, tokens: int
) -> tuple[int, _Last]:
    """Bytes that the forward of a micro-batch keeps, and the last block's part in them."""
    whole = [tokens * kept(model, layer, compute, phase.seq_len) for layer in model.layers]
    stride = {"none": 0, "full": 1, "selective": 2}[engine.activation_checkpointing]
    again = [bool(stride) and number % stride == 0 for number in range(len(whole))]
    short = tokens * compute * model.hidden
    each = [short if twice else size for size, twice in zip(whole, again, strict=True)]
    last = _Last(each[-1], whole[-1] if again[-1] else 0)
    return sum(each) + tokens * around(model, compute), last


def _head(config: Config, phase: Phase, model: Decoder, compute: int, rows: int) -> int:
    """Bytes of the head: logits of one chunk of rows, states of the rows that carry loss and their
    gradients, and the gradient of its weight (`engine.head.cross_entropy`); for retrieval the
    embeddings of the whole step with their gradients, and the similarities."""
    hidden, size = model.hidden, model.vocabulary * model.hidden
    if phase.objective_name == "retrieval":
        texts = phase.batch_size * texts_per_window(phase)
        pairs = phase.batch_size * (texts - phase.batch_size)
        return WIDE * (3 * texts * hidden + 4 * pairs)
    states = 2 * compute * rows * hidden
    trained = config.model.lora is None
    if phase.objective_name == "choice":
        return states + (compute * size if trained else 0)
    narrow = compute if compute < WIDE else 0
    chunk = min(rows, config.engine.head_chunk_rows)
    logits = chunk * model.vocabulary * (WIDE + narrow)
    one_chunk = rows <= chunk
    summed = compute if one_chunk else WIDE + narrow
    return states + logits + (summed * size if trained else 0)
