"""Rotary frequencies that depend on the longest text of a forward.

`longrope` takes another set of frequencies for all texts as soon as one is longer than the length
that the model was first trained at; `dynamic` stretches them with the longest text, and keeps them
stretched. Beyond that length a text's loss would depend on what happens to lie beside it, or came
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from curriculum.errors import RunError


@dataclass(frozen=True)
class RopeLimit:
    """Texts of at most `tokens` have frequencies of their own, whatever the rest; `kind` as in
    `rope_type`."""

    kind: str
    tokens: int

    def check(self, lengths: Sequence[int]) -> None:
        """Raises `RunError` where a forward over texts of these lengths would mix them up."""
        longest = max(lengths)
        if longest <= self.tokens or (self.kind == "longrope" and len(lengths) == 1):
            return
        raise RunError(
            f"a text of {longest} tokens among {len(lengths)} in one forward: the rotary "
            f"frequencies of this model (rope_type={self.kind}) change for all of them beyond "
            f"{self.tokens} tokens, so that losses would depend on the packing; give seq_len of at "
            f"most {self.tokens}"
        )


def rope_limit(config: PretrainedConfig) -> RopeLimit | None:
    """What a model's config says; None where frequencies are fixed."""
    given: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    each = [given] if "rope_type" in given else [v for v in given.values() if isinstance(v, dict)]
    limits = []
    for rope in each:
        if (kind := rope.get("rope_type")) in ("longrope", "dynamic"):
            tokens = rope.get("original_max_position_embeddings") or config.max_position_embeddings
            limits.append(RopeLimit(kind, int(tokens)))
    return min(limits, key=lambda limit: limit.tokens, default=None)
