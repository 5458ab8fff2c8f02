"""SignSGD: every weight moves by the learning rate, in the direction of its gradient's sign."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from curriculum.engine.optim.gradients import local


class SignSGD(torch.optim.Optimizer):
    """`w <- (1 - lr * weight_decay) * w - lr * sign(m)` (Bernstein et al., 2018).

    `m` is the gradient, or with `momentum` its moving average `m <- momentum * m + (1 - momentum)
    * g`, which the paper calls Signum. A gradient of exactly zero moves nothing. Parameters
    without a gradient are left as they are: neither moved, nor decayed, nor their average touched.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float, momentum: float) -> None:
        moments = ("exp_avg",) if momentum else ()
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "moments": moments}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            directions = [local(p.grad) for p in params]
            if group["momentum"]:
                averages = [local(self._average(p)) for p in params]
                torch._foreach_lerp_(averages, directions, 1 - group["momentum"])
                directions = averages
            weights = [local(p) for p in params]
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, torch._foreach_sign(directions), alpha=-group["lr"])

    def _average(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        return state["exp_avg"]
