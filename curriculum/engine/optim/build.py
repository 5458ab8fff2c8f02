"""Which optimizer, and which of its groups a parameter falls into."""

from typing import Any

import torch

from curriculum import config as schema
from curriculum.engine.model import TrainModel, decoder_layers
from curriculum.engine.optim.chain import Chain
from curriculum.engine.optim.muon import Muon
from curriculum.engine.optim.signsgd import SignSGD

Named = list[tuple[str, torch.nn.Parameter]]

ADAMW_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build_optimizer(model: TrainModel, optim: schema.Optim) -> torch.optim.Optimizer:
    """The optimizer that `optim.name` says, over sharded float32 parameters.

    Parameters are taken by name, so a tied tensor appears once; frozen ones are left out. Matrices
    decay, embeddings and head among them; norms and biases do not.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if optim.name == "signsgd":
        assert optim.momentum is not None
        return SignSGD(_groups(named, optim), optim.lr, optim.momentum)
    if optim.name == "adamw":
        return _adamw(named, optim)
    hidden = hidden_matrices(model)
    matrices = [p for name, p in named if name in hidden]
    rest = [(name, p) for name, p in named if name not in hidden]
    parts = []
    if matrices:
        parts.append(_muon(matrices, optim))
    if rest:
        parts.append(_adamw(rest, optim, optim.adamw_lr_ratio))
    return Chain(parts)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The step's rate, times the group's own ratio where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_ratio", 1.0)


def moment_names(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, tuple[str, ...]]:
    """What each parameter of the optimizer keeps between steps, once it had a gradient."""
    return {p: group["moments"] for group in optimizer.param_groups for p in group["params"]}


def empty_moment(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Zeros to load a moment into: a counter, or a tensor sharded like the parameter."""
    if name == "step":
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros_like(parameter.detach())


def hidden_matrices(model: TrainModel) -> set[str]:
    """Names of the weights of the decoder layers that map hidden states to hidden states.

    2-D tensors called `weight`, and 3-D tensors, which are stacks of experts' matrices. Never
    embeddings, convolution kernels, stacks of biases or the state matrices of state-space layers.
    """
    inside = {id(p) for layer in decoder_layers(model.lm) for p in layer.parameters()}
    names = set()
    for module_name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.modules.conv._ConvNd):
            continue
        for name, p in module.named_parameters(prefix=module_name, recurse=False):
            matrix = p.ndim == 2 and name.endswith("weight")
            stack = p.ndim == 3 and not name.endswith("bias")
            if id(p) in inside and (matrix or stack):
                names.add(name)
    return names


def decays(name: str, parameter: torch.Tensor) -> bool:
    """Norms and biases, by their number of axes, never decay; nor do what lies in stacks of
    biases (experts) and the logarithms of state-space layers."""
    return parameter.ndim > 1 and not name.endswith(("bias", "A_log"))


def _adamw(named: Named, optim: schema.Optim, lr_ratio: float | None = None) -> torch.optim.AdamW:
    assert optim.betas is not None and optim.eps is not None
    groups = _groups(named, optim, moments=ADAMW_MOMENTS, lr_ratio=lr_ratio or 1.0)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def _muon(matrices: list[torch.nn.Parameter], optim: schema.Optim) -> Muon:
    assert optim.momentum is not None and optim.nesterov is not None
    assert optim.adjust_lr_fn is not None and optim.ns_coefficients is not None
    assert optim.ns_steps is not None and optim.ns_eps is not None and optim.ns_dtype is not None
    return Muon(
        [{"params": matrices, "weight_decay": optim.weight_decay}],
        lr=optim.lr,
        momentum=optim.momentum,
        nesterov=optim.nesterov,
        adjust_lr_fn=optim.adjust_lr_fn,
        ns_coefficients=optim.ns_coefficients,
        ns_steps=optim.ns_steps,
        ns_eps=optim.ns_eps,
        ns_dtype=getattr(torch, optim.ns_dtype),
    )


def _groups(named: Named, optim: schema.Optim, **settings: Any) -> list[dict[str, Any]]:
    decayed = [p for name, p in named if decays(name, p)]
    kept = [p for name, p in named if not decays(name, p)]
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay, **settings},
        {"params": kept, "weight_decay": 0.0, **settings},
    ]
    return [group for group in groups if group["params"]]
