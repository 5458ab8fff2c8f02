"""What a forward keeps for its backward, in bytes a token: counted, operation by operation.

Autograd keeps an operand of a product where the other factor needs a gradient. Counted are the
forwards of `transformers` with the attention of `engine.attention`. With c bytes of the compute
dtype, hidden size H, and Q and K the widths of queries and of keys, a block keeps

    norm, each              (4 + c) H        its input in float32, and normalised
    attention               c (H + 3 Q + 2 K) + 4 heads    input, q, k, v, output twice, normalisers
    MLP of width I          c (H + 4 I)      input, gate, its activation, up, their product
    k experts of width I    c (H + k (2 H + 4 I)), and the router's probabilities in float32

Attention with a soft-cap, which has no kernel, keeps its scores: heads x length a token. A window
shorter than the example keeps its mask. A state-space mixer is counted as it runs without the
package `mamba-ssm`: three float32 states, its width x its state size, a token.
"""

from curriculum.plan.decoder import Decoder, Layer, Mamba

WIDE = 4  # bytes of float32
_INDEX = 8  # bytes of an int64


def kept(model: Decoder, layer: Layer, compute: int, length: int) -> int:
    """Bytes a token that one block keeps. `length`: of the example that the token stands in."""
    family = model.family
    norms = len(family.norms) + len(family.post_norms)
    mixer = (
        _attention(model, layer, compute, length)
        if layer.mamba is None
        else _mamba(layer.mamba, model.hidden, compute)
    )
    return norms * _norm(model, compute) + mixer + _mlp(model, layer, compute)


def around(model: Decoder, compute: int) -> int:
    """Bytes a token outside of the blocks: token ids, rotary angles, the final norm."""
    return 3 * _INDEX + 2 * compute * model.head_dim + _norm(model, compute)


def at_work(model: Decoder, layer: Layer, compute: int) -> int:
    """Bytes a token that the backward of a block holds at once beside what was kept: the gradients
    of its widest part, of that part's input, and of what goes around it."""
    if layer.mamba is not None:
        return 2 * WIDE * layer.mamba.inner * layer.mamba.state
    width = layer.width * max(1, layer.chosen)
    return compute * (2 * model.hidden + 3 * max(width, model.queries))


def _norm(model: Decoder, compute: int, width: int | None = None) -> int:
    factor = WIDE if model.family.wide_norm else compute
    return (WIDE + factor) * (width or model.hidden) + WIDE


def _attention(model: Decoder, layer: Layer, compute: int, length: int) -> int:
    queries, keys = model.queries, model.keys
    total = compute * (model.hidden + 3 * queries + 2 * keys) + WIDE * model.heads
    if model.softcap:
        narrow = compute if compute < WIDE else 0
        scores = (compute + WIDE + narrow) * model.heads * length + length
        total = compute * (model.hidden + 4 * queries) + scores
    elif layer.window is not None and length > layer.window:
        total += (1 + compute) * length
    if model.family.qk_norm != "none":
        total += _norm(model, compute, queries) + _norm(model, compute, keys)
    return total


def _mlp(model: Decoder, layer: Layer, compute: int) -> int:
    hidden, width = model.hidden, layer.width
    if not layer.experts:
        return compute * (hidden + 4 * width)
    routed = compute * layer.chosen * (2 * hidden + 4 * width + 1)
    routing = WIDE * layer.experts + 4 * _INDEX * layer.chosen
    shared = compute * (hidden + 4 * layer.shared + 1) if layer.shared else 0
    return compute * hidden + routed + routing + shared


def _mamba(mixer: Mamba, hidden: int, compute: int) -> int:
    inner, state = mixer.inner, mixer.state
    narrow = compute if compute < WIDE else 0
    selected = (WIDE + 2 * compute) * (mixer.rank + 2 * state)
    states = (3 * WIDE + narrow) * inner * state
    wide = WIDE * inner if narrow else 0
    return compute * (hidden + 9 * inner) + selected + states + wide
