"""From final hidden states to a loss or to embeddings.

Only rows that carry loss get here, and full-vocabulary logits exist for one chunk of them at a
time. `transform` has the output transforms of model families, `cross_entropy` the chunked pass,
`rows` what an objective of tokens is handed, `embed` what an objective of texts is handed.
"""

from typing import Literal

from curriculum.engine.head.embed import pooled
from curriculum.engine.head.rows import PLAIN, Reduce, Rows, Sums, token_cross_entropy
from curriculum.engine.head.transform import Transform, logits, transform_of

Head = Literal["rows", "embed", "logits"]

__all__ = [
    "PLAIN",
    "Head",
    "Reduce",
    "Rows",
    "Sums",
    "Transform",
    "logits",
    "pooled",
    "token_cross_entropy",
    "transform_of",
]
