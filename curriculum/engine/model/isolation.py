"""The check that packed examples do not see one another, on the model or on its first layers."""

import copy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from curriculum.engine import attention
from curriculum.engine.batch import Batch
from curriculum.engine.model.blocks import decoder_layers
from curriculum.engine.model.modes import set_attention
from curriculum.engine.model.pretrained import is_empty
from curriculum.engine.model.train_model import TrainModel
from curriculum.engine.router import without_router_outputs
from curriculum.errors import RunError

_SHORT, _LONG = 8, 512  # sliding windows: one for a check, and the longest that a check may exceed


def check_isolation(model: TrainModel, device: torch.device | None = None) -> None:
    """Find a way in which packed examples give the logits that each gives alone.

    Sets `model.isolates`, `model.native` and the attention implementation. A model on meta, or one
    whose window is longer than an example of the check, is stood for by a `shortened` one on
    `device`. Raises `RunError` if there is no way.
    """
    lm = model.lm
    if not is_empty(lm) and _window(lm.config) <= _LONG:
        _check(model)
        return
    probe = TrainModel(shortened(lm).to(device or lm.device), model.chunk_rows)
    _check(probe)
    model.isolates, model.native = probe.isolates, probe.native
    set_attention(lm, probe.lm.config._attn_implementation)


def _check(model: TrainModel, tolerance: float = 1e-5) -> None:
    """Compare what is trained with each example alone.

    Runs in float32 before sharding, against the model's own implementation (`eager`, which leaves
    out nothing that a family does to its scores) with each example alone. Tries per-example
    attention, then one example a row; sets `model.isolates`, and `model.native` to the faster
    `sdpa` where it computes the same. Refuses a model whose logits the head does not reproduce. The
    smallest leak of any known family is 1e-3 of the logits' scale, exact ones stay below 5e-7.
    """
    lm = model.lm
    vocabulary = lm.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    longest = min(max(12, _window(lm.config) + 5), _positions(lm))
    lengths = [5, longest, 7]
    tokens = torch.randint(vocabulary, (sum(lengths),), generator=generator)
    batch = _everything_counts(tokens.to(lm.device), lengths)
    was_training = lm.training
    lm.eval()
    with torch.no_grad(), without_router_outputs(lm.config):

        def alone(name: str) -> torch.Tensor:
            set_attention(lm, name)
            parts = batch.input_ids[0].split(lengths)
            return torch.cat([lm(p[None], use_cache=False).logits[0] for p in parts]).float()

        expected = alone("eager")
        limit = tolerance * expected.abs().max()
        same = (alone("sdpa") - expected).abs().max() <= limit
        model.native = lm.config._attn_implementation if same else "eager"
        for isolates, name in ((True, attention.NAME), (False, model.native)):
            model.isolates = isolates
            try:
                set_attention(lm, name)
                got: list[torch.Tensor] = []
                model(batch, "logits", lambda out, got=got: (got.append(out), out.sum()))
            except (AttributeError, RuntimeError, ValueError, KeyError, TypeError):
                continue
            if (got[0] - expected).abs().max() <= limit:
                lm.train(was_training)
                return
    raise RunError(
        f"{type(lm).__name__}: packed examples do not give the logits that they give alone, "
        "neither with per-example attention nor with one example a row; "
        "this model family cannot be trained exactly here"
    )


def shortened(lm: PreTrainedModel, vocabulary: int = 1024) -> PreTrainedModel:
    """A model of the same family and width with random weights, for a check where `lm` is on meta.

    It has as many of the first layers as it takes to hold one of each kind, fewer tokens, so that
    it fits where a share of the model does, and a short sliding window, so that a few tokens are
    more. Isolation is a property of the architecture.
    """
    config = copy.deepcopy(lm.config)
    kinds: dict[Any, int] = {}
    layers = decoder_layers(lm)
    for number, layer in enumerate(layers):
        kinds.setdefault(_kind(layer), number)
    _cut(config, len(layers), max(kinds.values()) + 1)
    if vocabulary < config.vocab_size:
        config.vocab_size = vocabulary
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, name, None)
    if _window(config) > _SHORT:
        config.sliding_window = _SHORT
    config.name_or_path = ""  # it has no directory to be filled from
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _kind(layer: torch.nn.Module) -> Any:
    """What tells layers apart: their weights' shapes, and plain settings other than their place."""
    shapes = tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())
    settings = tuple(
        (name, key, value)
        for name, module in layer.named_modules()
        for key, value in sorted(vars(module).items())
        if isinstance(value, bool | int | float | str | None)
        and not key.startswith("_")
        and key not in ("layer_idx", "layer_id", "layer_index")
    )
    return shapes, settings


def _cut(config: PretrainedConfig, layers: int, kept: int) -> None:
    """Fewer layers, and shorter lists of what each layer is."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == layers:
            setattr(config, name, value[:kept])
    config.num_hidden_layers = kept


def _window(config: PretrainedConfig) -> int:
    return int(getattr(config, "sliding_window", None) or 0)


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
