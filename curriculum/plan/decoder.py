"""What the layers of a decoder are made of, read from a model's configuration alone.

One row of `FAMILIES` for each `model_type` of `transformers` that can be counted without building
it: what differs between families, and what a configuration may leave out. A family that is not
here, or a number that its configuration does not give, raises `Unknown`, which says what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal


class Unknown(Exception):
    """A model whose parts cannot be told from its configuration; the message is for the user."""


@dataclass(frozen=True)
class Family:
    """`kv_heads`, `head_dim`, `tied`: where the configuration is silent; None means as many as
    heads, and hidden size / heads. `qkv_bias`, `o_bias`: None means `attention_bias`. `norms` and
    `post_norms`: of the block, before and behind what they belong to. `wide_norm`: the norm
    multiplies by its weight in float32. `fused`: one matrix for q, k, v and one for gate, up.
    `softcap`: attention is explicit where the configuration does not turn it off. `window`: of
    attention, where the configuration is silent."""

    kv_heads: int | None = None
    head_dim: int | None = None
    tied: bool = False
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool = False
    qk_norm: Literal["none", "head", "all"] = "none"
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    post_norms: tuple[str, ...] = ()
    wide_norm: bool = False
    fused: bool = False
    softcap: bool = False
    window: int | None = None
    sparse: bool = False
    router: str = "gate"
    mlp: str = "mlp"
    final_norm: str = "norm"


_PLAIN = {"qkv_bias": False, "o_bias": False}
_GEMMA_NORMS: dict[str, Any] = {
    "norms": ("input_layernorm", "pre_feedforward_layernorm"),
    "post_norms": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "wide_norm": True,
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(mlp_bias=True),
    "mistral": Family(kv_heads=8, window=4096, **_PLAIN),
    "qwen2": Family(kv_heads=32, qkv_bias=True, o_bias=False),
    "qwen3": Family(kv_heads=32, head_dim=128, qk_norm="head"),
    "gemma": Family(kv_heads=16, head_dim=256, tied=True, wide_norm=True),
    "gemma2": Family(
        kv_heads=4, head_dim=256, tied=True, softcap=True, window=4096, **_GEMMA_NORMS
    ),
    "gemma3_text": Family(
        kv_heads=4, head_dim=256, tied=True, qk_norm="head", window=4096, **_GEMMA_NORMS
    ),
    "smollm3": Family(kv_heads=4, tied=True, mlp_bias=True),
    "phi3": Family(fused=True, **_PLAIN),
    "granite": Family(mlp_bias=True),
    "olmo2": Family(
        qk_norm="all",
        norms=(),
        post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        wide_norm=True,
    ),
    "qwen2_moe": Family(kv_heads=16, qkv_bias=True, o_bias=False, sparse=True),
    "qwen3_moe": Family(kv_heads=4, qk_norm="head", sparse=True),
    "mixtral": Family(kv_heads=8, sparse=True, **_PLAIN),
    "olmoe": Family(qk_norm="all", sparse=True),
    "jamba": Family(
        kv_heads=8,
        norms=("input_layernorm", "pre_ff_layernorm"),
        sparse=True,
        router="router",
        mlp="feed_forward",
        final_norm="final_layernorm",
        **_PLAIN,
    ),
}


@dataclass(frozen=True)
class Mamba:
    """Sizes of a state-space mixer."""

    inner: int
    state: int
    kernel: int
    rank: int
    conv_bias: bool
    proj_bias: bool


@dataclass(frozen=True)
class Layer:
    """`width`: of the MLP, or of one expert where there are `experts`, of which a token visits
    `chosen`; `shared`: width of the expert that every token visits. `mamba`: in place of attention.
    `window`: how far attention looks back; None means to the beginning."""

    width: int
    experts: int = 0
    chosen: int = 0
    shared: int = 0
    mamba: Mamba | None = None
    window: int | None = None


@dataclass(frozen=True)
class Decoder:
    """A decoder's sizes. `head_dim` x `heads` is the width of its queries."""

    model_type: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    softcap: bool
    layers: tuple[Layer, ...]

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim


def decoder(config: Mapping[str, Any]) -> Decoder:
    """The decoder that a configuration of `transformers` describes. Raises `Unknown`."""
    kind = str(config.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        raise Unknown(f"model_type={kind}: not among those counted here ({', '.join(FAMILIES)})")
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    bias = bool(config.get("attention_bias"))
    own = bool(config.get("qkv_bias", family.qkv_bias))  # qwen2_moe may switch its bias off
    return Decoder(
        model_type=kind,
        hidden=hidden,
        vocabulary=_number(config, "vocab_size"),
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", family.kv_heads or heads),
        head_dim=_number(config, "head_dim", family.head_dim or hidden // heads),
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        qkv_bias=bias if family.qkv_bias is None else own,
        o_bias=bias if family.o_bias is None else family.o_bias,
        mlp_bias=family.mlp_bias and bool(config.get("mlp_bias")),
        softcap=family.softcap and config.get("attn_logit_softcapping", True) is not None,
        layers=tuple(
            _layer(config, family, kind, i) for i in range(_number(config, "num_hidden_layers"))
        ),
    )


def _layer(config: Mapping[str, Any], family: Family, kind: str, index: int) -> Layer:
    window = _window(config, family, index)
    if not family.sparse:
        return Layer(_number(config, "intermediate_size"), window=window)
    mamba = None
    if kind == "jamba":
        sparse = index % _number(config, "expert_layer_period") == _number(
            config, "expert_layer_offset"
        )
        if index % _number(config, "attn_layer_period") != _number(config, "attn_layer_offset"):
            mamba = _mamba(config)
    else:
        apart = config.get("mlp_only_layers") or ()
        sparse = index not in apart and (index + 1) % (config.get("decoder_sparse_step") or 1) == 0
    experts = _number(config, "num_experts" if "num_experts" in config else "num_local_experts")
    if not sparse or (kind == "jamba" and experts == 1):
        return Layer(_number(config, "intermediate_size"), mamba=mamba, window=window)
    apart_width = kind in ("qwen2_moe", "qwen3_moe")
    return Layer(
        width=_number(config, "moe_intermediate_size" if apart_width else "intermediate_size"),
        experts=experts,
        chosen=_number(config, "num_experts_per_tok"),
        shared=_number(config, "shared_expert_intermediate_size") if kind == "qwen2_moe" else 0,
        mamba=mamba,
        window=window,
    )


def _window(config: Mapping[str, Any], family: Family, index: int) -> int | None:
    kinds = config.get("layer_types")
    if not config.get("use_sliding_window", True) or (kinds and kinds[index] == "full_attention"):
        return None
    window = config.get("sliding_window", family.window)
    return int(window) if window else None


def _mamba(config: Mapping[str, Any]) -> Mamba:
    hidden, rank = _number(config, "hidden_size"), config.get("mamba_dt_rank", "auto")
    return Mamba(
        inner=_number(config, "mamba_expand") * hidden,
        state=_number(config, "mamba_d_state"),
        kernel=_number(config, "mamba_d_conv"),
        rank=ceil(hidden / 16) if rank == "auto" else int(rank),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        proj_bias=bool(config.get("mamba_proj_bias", False)),
    )


def _number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int):
        raise Unknown(f"model_type={config.get('model_type')}: its configuration gives no {key}")
    return value
