"""From final hidden states to a loss or to embeddings.

Only rows that carry loss get here, and full-vocabulary logits exist for one chunk of them at a
time. `transform` has the output transforms of model families, `cross_entropy` the chunked pass,
`rows` what an objective of tokens is handed, `choices` the logits of a row's candidate tokens,
`embed` what an objective of texts is handed.
"""

from typing import Literal

from curriculum.engine.head.choices import choice_logits, padded_logits
from curriculum.engine.head.embed import Embed, embed_of, pooled, states_of, unit
from curriculum.engine.head.rows import PLAIN, Reduce, Rows, Sums, token_cross_entropy
from curriculum.engine.head.transform import Transform, logits, transform_of

Head = Literal["rows", "choices", "embed", "logits"] | Embed

__all__ = [
    "PLAIN",
    "Embed",
    "Head",
    "Reduce",
    "Rows",
    "Sums",
    "Transform",
    "choice_logits",
    "embed_of",
    "logits",
    "padded_logits",
    "pooled",
    "states_of",
    "token_cross_entropy",
    "transform_of",
    "unit",
]
