"""`TrainModel`, the FSDP root around a `transformers` causal LM: built, checked, sharded.

`build` makes the LM from a config or from a directory, `pretrained` fills a sharded one from the
files of a directory, `isolation` checks that packing is exact, `blocks` finds the decoder layers,
`wrap` shards, `modes` switches between training, forwards without gradient, and generation.
"""

from curriculum.engine.model.blocks import decoder_layers
from curriculum.engine.model.build import build_lm, check_vocabulary
from curriculum.engine.model.isolation import check_isolation
from curriculum.engine.model.modes import (
    gathered,
    no_grad_forwards,
    reshard,
    set_attention,
    sharded_modules,
)
from curriculum.engine.model.train_model import TrainModel
from curriculum.engine.model.wrap import wrap

__all__ = [
    "TrainModel",
    "build_lm",
    "check_isolation",
    "check_vocabulary",
    "decoder_layers",
    "gathered",
    "no_grad_forwards",
    "reshard",
    "set_attention",
    "sharded_modules",
    "wrap",
]
