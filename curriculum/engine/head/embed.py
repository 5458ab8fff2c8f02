"""Text embeddings from hidden states."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from curriculum.errors import UserError


@dataclass(frozen=True)
class Embed:
    """The head of texts: states after the final norm (layer -1) or of the k-th decoder layer,
    counted from 1; of each text's last token, or the mean over its tokens."""

    layer: int = -1
    pooling: Literal["last", "mean"] = "last"


def embed_of(head: object) -> Embed | None:
    """The settings of a head of texts, `"embed"` being the plain one; None for another head."""
    if head == "embed":
        return Embed()
    return head if isinstance(head, Embed) else None


def pooled(
    hidden: torch.Tensor, last: torch.Tensor, seq_lens: Sequence[int], pooling: str
) -> torch.Tensor:
    """One float32 state of each text, `[S, hidden]`.

    hidden `[T, hidden]`, texts end to end, `seq_lens` their S lengths, last `[S]` their last
    positions.
    """
    if pooling == "mean":
        texts = hidden.float().split(list(seq_lens))
        return torch.stack([text.mean(0) for text in texts])
    return hidden.index_select(0, last).float()


def unit(states: torch.Tensor) -> torch.Tensor:
    """Rows divided by their L2 norm. A zero vector stays zero with a finite gradient."""
    return states * torch.rsqrt(states.square().sum(-1, keepdim=True) + 1e-12)


@contextmanager
def states_of(
    layers: Sequence[torch.nn.Module], layer: int
) -> Iterator[Callable[[Any], torch.Tensor]]:
    """A function from the base model's output to the states of a layer, for one forward inside.

    The layer's output is caught as it passes; no other layer's is kept. Layers above it still run.
    Raises `UserError` for a layer that the model does not have.
    """
    if layer == -1:
        yield lambda output: output.last_hidden_state
        return
    if layer > len(layers):
        raise UserError(
            f"retrieval.layer={layer}: the model has layers 1 to {len(layers)}, "
            "and -1 for the states after its final norm"
        )
    caught: list[torch.Tensor] = []

    def catch(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        caught.append(output if isinstance(output, torch.Tensor) else output[0])

    handle = layers[layer - 1].register_forward_hook(catch)
    try:
        yield lambda output: caught[0]
    finally:
        handle.remove()
