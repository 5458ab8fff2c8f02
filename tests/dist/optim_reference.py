"""The optimizers by hand: float64, whole tensors, and a singular value decomposition for Muon."""

from dataclasses import replace
from functools import cache

import torch

from curriculum import config as schema
import tiny

STEPS = 3
RATES = [1e-2, 5e-3, 1e-2, 2e-3]

_MUON = schema.Optim(
    name="muon",
    lr=1.0,  # each step brings its own
    weight_decay=0.1,
    max_grad_norm=0.5,
    betas=(0.9, 0.95),
    eps=1e-8,
    momentum=0.9,
    nesterov=True,
    adjust_lr_fn="match_rms_adamw",
    adamw_lr_ratio=0.5,
    ns_coefficients=(3.4445, -4.7750, 2.0315),
    ns_steps=5,
    ns_eps=1e-7,
    ns_dtype="float32",
)
_SIGN = schema.Optim(name="signsgd", lr=1.0, weight_decay=0.1, max_grad_norm=0.5, momentum=0.8)
OPTIMS = {
    "adamw": replace(tiny.OPTIM, lr=1.0),
    "muon": _MUON,
    "signsgd": _SIGN,
    "sign": replace(_SIGN, momentum=0.0),
}
MOE = tiny.model_config(
    True,
    model_type="qwen3_moe",
    num_experts=3,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)


def examples(number: int) -> list[tuple[list[int], list[float]]]:
    return tiny.examples("causal", seed=number)


def orthogonal(matrix: torch.Tensor, optim: schema.Optim) -> torch.Tensor:
    """Newton-Schulz changes nothing but singular values: each goes through the polynomial."""
    a, b, c = optim.ns_coefficients  # type: ignore[misc]
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / max(s.square().sum().sqrt().item(), optim.ns_eps or 0.0)
    for _ in range(optim.ns_steps or 0):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def is_hidden_matrix(name: str) -> bool:
    parts = ("_proj", "mlp.gate.weight")
    return any(part in name for part in parts) and "norm" not in name


class ByHand:
    """Steps of one of `OPTIMS` on the parameters of a float64 model."""

    def __init__(self, model: torch.nn.Module, optim: schema.Optim) -> None:
        self.names = dict(model.named_parameters())
        self.optim = optim
        self.kept: dict[str, list[torch.Tensor]] = {}
        self.ages: dict[str, int] = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        gradients = {n: p.grad for n, p in self.names.items() if p.grad is not None}
        norm = sum(g.square().sum().item() for g in gradients.values()) ** 0.5
        limit = self.optim.max_grad_norm or float("inf")
        for name, gradient in gradients.items():
            p, g = self.names[name], gradient * min(1.0, limit / (norm + 1e-6))
            decay = 0.0 if "norm" in name or name.endswith("bias") else self.optim.weight_decay
            kept = self.kept.setdefault(name, [torch.zeros_like(p), torch.zeros_like(p)])
            if self.optim.name == "signsgd":
                mu = self.optim.momentum or 0.0
                kept[0] = mu * kept[0] + (1 - mu) * g
                p.copy_(p * (1 - rate * decay) - rate * torch.sign(kept[0]))
            elif self.optim.name == "muon" and is_hidden_matrix(name):
                self._muon(p, g, kept, rate)
            else:
                self._adamw(name, p, g, kept, rate * (self.optim.adamw_lr_ratio or 1.0), decay)
            p.grad = None

    def _muon(
        self, p: torch.Tensor, g: torch.Tensor, kept: list[torch.Tensor], rate: float
    ) -> None:
        mu = self.optim.momentum or 0.0
        kept[0] = mu * kept[0] + (1 - mu) * g
        update = mu * kept[0] + (1 - mu) * g
        whole = p.shape if p.ndim == 3 else (1, *p.shape)
        directions = [orthogonal(m, self.optim) for m in update.reshape(whole)]
        factor = 0.2 * max(p.shape[-2:]) ** 0.5
        moved = rate * factor * torch.stack(directions).reshape(p.shape)
        p.copy_(p * (1 - rate * self.optim.weight_decay) - moved)

    def _adamw(
        self,
        name: str,
        p: torch.Tensor,
        g: torch.Tensor,
        kept: list[torch.Tensor],
        rate: float,
        decay: float,
    ) -> None:
        first, second = self.optim.betas  # type: ignore[misc]
        age = self.ages[name] = self.ages.get(name, 0) + 1
        kept[0] = first * kept[0] + (1 - first) * g
        kept[1] = second * kept[1] + (1 - second) * g.square()
        unbiased = kept[0] / (1 - first**age)
        size = (kept[1] / (1 - second**age)).sqrt() + self.optim.eps
        p.copy_(p * (1 - rate * decay) - rate * unbiased / size)


@cache
def trained(name: str, moe: bool = False, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Weights after steps with this optimizer; AdamW is torch's own, unsharded."""
    lm = tiny.reference_model(MOE if moe else tiny.model_config(True))
    if moe:
        lm.set_experts_implementation("eager")  # the grouped kernel has no float64
    optim = OPTIMS[name]
    by_hand = ByHand(lm, optim)
    groups = [
        {
            "params": [p for n, p in lm.named_parameters() if ("norm" in n) == norms],
            "weight_decay": 0.0 if norms else optim.weight_decay,
        }
        for norms in (False, True)
    ]
    adamw = torch.optim.AdamW(groups, lr=1.0, betas=tiny.OPTIM.betas, eps=tiny.OPTIM.eps)  # type: ignore[arg-type]
    for number in range(steps):
        tiny.token_loss(lm, examples(number)).backward()
        if name == "adamw":
            torch.nn.utils.clip_grad_norm_(lm.parameters(), optim.max_grad_norm or 0.0)
            for group in adamw.param_groups:
                group["lr"] = RATES[number]
            adamw.step()
            adamw.zero_grad()
        else:
            by_hand.step(RATES[number])
    return {n: p.detach() for n, p in lm.named_parameters()}
