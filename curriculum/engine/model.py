"""`TrainModel`, the FSDP root around a `transformers` causal LM: built, checked, sharded."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from curriculum import config as schema
from curriculum.engine import attention
from curriculum.engine.batch import Batch
from curriculum.engine.distributed import World
from curriculum.engine.head import (
    Head,
    Reduce,
    Rows,
    Sums,
    Transform,
    logits,
    pooled,
    transform_of,
)
from curriculum.errors import RunError, UserError


class TrainModel(torch.nn.Module):
    """Every use of a weight goes through `forward`, so that FSDP sees it.

    `isolates` says whether the model takes per-example attention; if not, each example becomes a
    right-padded row of its own, which a causal model cannot tell from running it alone.
    """

    def __init__(self, lm: PreTrainedModel, chunk_rows: int) -> None:
        super().__init__()
        self.lm = lm
        self.chunk_rows = chunk_rows
        self.transform: Transform = transform_of(lm.config)
        self.isolates = True

    def forward(self, batch: Batch, head: Head, reduce: Reduce) -> Sums:
        """The sums that `reduce` makes of a head's output.

        rows:   `head.Rows`, hidden states of the positions that carry loss
        embed:  `[S, hidden]` float32, L2-normalised embeddings of the row's texts
        logits: `[N, vocabulary]` float32 of the positions that carry loss
        """
        hidden = self._hidden(batch)
        if head == "embed":
            return reduce(pooled(hidden, batch.last))
        projection = self.lm.get_output_embeddings()
        rows = hidden.index_select(0, batch.rows)
        bias = getattr(projection, "bias", None)
        if head == "logits":
            return reduce(logits(rows, projection.weight, bias, self.transform))
        return reduce(Rows(rows, projection.weight, bias, self.transform, self.chunk_rows))

    def _hidden(self, batch: Batch) -> torch.Tensor:
        """Final-norm states `[T, hidden]` of one row of examples."""
        if self.isolates:
            return self.lm.base_model(
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                seq_lens=batch.seq_lens,
                use_cache=False,
            ).last_hidden_state[0]
        lengths = torch.tensor(batch.seq_lens, device=batch.input_ids.device)
        real = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        padded = torch.zeros(real.shape, dtype=torch.long, device=lengths.device)
        padded[real] = batch.input_ids[0]
        return self.lm.base_model(input_ids=padded, use_cache=False).last_hidden_state[real]

    def generate(self, **arguments: Any) -> torch.Tensor:
        return self.lm.generate(**arguments)


def build_lm(model: schema.Model, seed: int, weights: Path | None = None) -> PreTrainedModel:
    """A causal LM with float32 master weights: those of a Hugging Face directory, or random ones.

    Without `weights` the architecture is `model.config`, or that of `model.path`. Every rank draws
    the same numbers: `fully_shard` keeps each rank's slice of its own.
    """
    attention.register()
    torch.manual_seed(seed)
    try:
        if weights is not None:
            return AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        if model.config is not None:
            options = dict(model.config)
            config = AutoConfig.for_model(options.pop("model_type"), **options)
        elif model.path is not None:
            config = AutoConfig.from_pretrained(model.path)
        else:
            raise UserError(f"model={model.name}: give model.path=DIR (a Hugging Face directory)")
    except (OSError, ValueError, KeyError) as error:
        cause = str(error).strip().splitlines()[0]
        raise UserError(f"model {model.name}: cannot be built: {cause}") from None
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def check_vocabulary(lm: PreTrainedModel, tokens: int) -> None:
    """Raises `UserError` if the tokenizer has ids that the embedding has no row for."""
    rows = lm.get_input_embeddings().weight.shape[0]
    if tokens > rows:
        raise UserError(
            f"model.tokenizer: has {tokens} tokens, the model's embedding {rows} rows; "
            "give the tokenizer that belongs to the model, or a larger vocab_size"
        )


def wrap(lm: PreTrainedModel, engine: schema.Engine, world: World) -> TrainModel:
    """Check that packing is exact for this model, then shard it.

    Groups: each decoder layer, then the root with embedding, final norm and head, which stays
    gathered between its forward and its backward. Gradients are summed, not averaged, over ranks;
    the step divides once. Both settings have to be made on every module: they do not recurse.
    """
    lm = lm.to(world.device)
    model = TrainModel(lm, engine.head_chunk_rows)
    check_isolation(model)
    compute = getattr(torch, engine.dtype)
    precision = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    layer_precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in decoder_layers(lm):
        fully_shard(layer, mesh=world.mesh, mp_policy=layer_precision, reshard_after_forward=True)
    fully_shard(model, mesh=world.mesh, mp_policy=precision, reshard_after_forward=False)
    register_fsdp_forward_method(model, "generate")
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return model


def decoder_layers(lm: PreTrainedModel) -> list[torch.nn.Module]:
    """The repeated blocks: the longest module list of the base model."""
    lists = [m for m in lm.base_model.modules() if isinstance(m, torch.nn.ModuleList)]
    if not lists:
        raise RunError(f"{type(lm).__name__}: no list of decoder layers was found to shard")
    return list(max(lists, key=len))


def sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def no_grad_forwards(model: TrainModel, training: bool = False) -> Iterator[None]:
    """The only place for forwards without gradient; in evaluation mode unless `training`.

    Without the reshard on exit the root stays gathered, `parameters()` then gives tensors without
    gradients, and the next clipping misses them. Never `inference_mode`: it poisons the gather
    buffers for later training.
    """
    was_training = model.training
    model.train(training)
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
        reshard(model)


def reshard(model: TrainModel) -> None:
    for module in sharded_modules(model):
        module.reshard()


@contextmanager
def gathered(model: TrainModel) -> Iterator[None]:
    """All weights gathered on every rank, so that ranks may run different numbers of forwards."""
    modules = sharded_modules(model)
    previous = model.lm.config._attn_implementation
    set_attention(model.lm, "sdpa")
    try:
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        yield
    finally:
        for module in modules:
            # the root, and only the root, stays gathered after its forward
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()
        set_attention(model.lm, previous)


def set_attention(lm: PreTrainedModel, name: str) -> None:
    """Switch the attention implementation; families that refuse `sdpa` get `eager`."""
    try:
        lm.set_attn_implementation(name)
    except ValueError:
        if name != "sdpa":
            raise
        lm.set_attn_implementation("eager")


def check_isolation(model: TrainModel, tolerance: float = 1e-5) -> None:
    """Find a way in which packed examples give the logits that each gives alone.

    Runs in float32 before sharding, against the model's own implementation with each example
    alone. Tries per-example attention, then one example a row; sets `model.isolates`. Refuses a
    model whose logits the head does not reproduce. The smallest leak of any known family is 1e-3
    of the logits' scale, exact ones stay below 5e-7.
    """
    lm = model.lm
    vocabulary = lm.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    window = getattr(lm.config, "sliding_window", None) or 0
    longest = min(max(12, window + 5 if window <= 512 else 12), _positions(lm))
    lengths = [5, longest, 7]
    tokens = torch.randint(vocabulary, (sum(lengths),), generator=generator)
    batch = _everything_counts(tokens.to(lm.device), lengths)
    was_training = lm.training
    lm.eval()
    with torch.no_grad():
        set_attention(lm, "sdpa")
        alone = torch.cat(
            [
                lm(part[None], use_cache=False).logits[0]
                for part in batch.input_ids[0].split(lengths)
            ]
        ).float()
        scale = alone.abs().max()
        for isolates, name in ((True, attention.NAME), (False, "sdpa")):
            model.isolates = isolates
            try:
                set_attention(lm, name)
                got: list[torch.Tensor] = []
                model(batch, "logits", lambda out, got=got: (got.append(out), out.sum()))
            except (RuntimeError, ValueError, KeyError, TypeError):
                continue
            if (got[0] - alone).abs().max() <= tolerance * scale:
                lm.train(was_training)
                return
    raise RunError(
        f"{type(lm).__name__}: packed examples do not give the logits that they give alone, "
        "neither with per-example attention nor with one example a row; "
        "this model family cannot be trained exactly here"
    )


def _positions(lm: PreTrainedModel) -> int:
    return int(getattr(lm.config, "max_position_embeddings", None) or 1 << 30)


def _everything_counts(tokens: torch.Tensor, lengths: list[int]) -> Batch:
    """A batch in which every position is a row."""
    count = len(tokens)
    every = torch.arange(count, device=tokens.device)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(tokens.device)
    return Batch(
        input_ids=tokens[None],
        position_ids=positions[None],
        seq_lens=lengths,
        rows=every,
        labels=every,
        weights=torch.ones(count, device=tokens.device),
        last=positions,
        text_ids=positions,
        groups=[],
        windows=1,
    )
