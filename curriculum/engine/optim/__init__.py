"""The optimizers, and one pass over the gradients that normalises and clips them together.

- `build`: which optimizer, and which of its groups a parameter falls into;
- `muon`, `signsgd`: the updates that torch lacks for sharded parameters (AdamW is torch's own);
- `chain`: several optimizers over disjoint parameters, seen as one;
- `gradients`: this rank's shards of the gradients.

Each group says in `moments` what its parameters keep between steps, and in `lr_ratio` its share of
the step's learning rate.
"""

from curriculum.engine.optim.build import (
    build_optimizer,
    empty_moment,
    moment_names,
    set_learning_rate,
)
from curriculum.engine.optim.gradients import local_gradients, scale_gradients, squared_norm

__all__ = [
    "build_optimizer",
    "empty_moment",
    "local_gradients",
    "moment_names",
    "scale_gradients",
    "set_learning_rate",
    "squared_norm",
]
