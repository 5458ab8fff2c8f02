"""Several optimizers over disjoint parameters, seen as one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Chain(torch.optim.Optimizer):
    """The groups of its parts in a row (the same objects), one state by parameter, one step."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        for part in self.parts:
            part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for part in self.parts:
            part.step()
