"""Models of the model tests, and a plain-PyTorch step of a sparse one with its router loss."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch
from transformers import PreTrainedModel

from curriculum import config as schema

COEFFICIENT = 0.3

_EXPERTS: dict[str, object] = {"num_experts_per_tok": 2, "router_aux_loss_coef": COEFFICIENT}
SPARSE = {
    "qwen3_moe": tiny.model_config(
        True,
        model_type="qwen3_moe",
        moe_intermediate_size=24,
        num_experts=5,
        norm_topk_prob=True,
        **_EXPERTS,
    ),
    "mixtral": tiny.model_config(False, model_type="mixtral", num_local_experts=5, **_EXPERTS),
}

# name, objective, router losses, (examples a window, windows a micro-batch)
EXPERT_CASES: list[tuple[str, str, bool, list[tuple[int, int]]]] = [
    ("generative on", "generative", True, [(3, 1), (3, 2), (3, 99)]),
    ("retrieval on", "retrieval", True, [(1, 1), (1, 4)]),
    ("generative off", "generative", False, [(1, 4), (3, 2), (4, 99)]),
]

DROPOUT = tiny.model_config(
    True,
    model_type="qwen3_moe",
    moe_intermediate_size=24,
    num_experts=5,
    num_hidden_layers=3,
    attention_dropout=0.3,
    output_router_logits=True,
    **_EXPERTS,
)

LORA = schema.Lora(r=3, alpha=8.0, dropout=0.2, targets="all-linear")
_ROPE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1234.0}
PRETRAINED = {
    "tied": tiny.model_config(True, rope_parameters=_ROPE),
    "untied": tiny.model_config(False),
    "gemma": tiny.model_config(
        True,
        model_type="gemma3_text",
        num_hidden_layers=7,
        sliding_window=8,
        query_pre_attn_scalar=8,
    ),
    "sparse": SPARSE["qwen3_moe"],
}
ADAPTED = {
    "tied": replace(PRETRAINED["tied"], lora=LORA),
    "sparse": replace(PRETRAINED["sparse"], lora=LORA),
    "from nothing": replace(
        tiny.model_config(True, model_type="gpt2", n_embd=32, n_layer=2, n_head=4),
        lora=replace(LORA, targets=["c_attn"]),
    ),
}


class Tokenizer:
    """Stands for a tokenizer at export: the model's files alone are looked at."""

    def save_pretrained(self, directory: str) -> None:
        Path(directory).mkdir(exist_ok=True)


def sparse_step(
    model: schema.Model, objective: str, router_loss: bool, per_window: int
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and weights after one SGD step of rate 0.1, in float64, every example alone."""
    lm = tiny.reference_model(model)
    lm.set_experts_implementation("eager")  # the grouped one has no float64
    if objective == "retrieval":
        made = tiny.groups()
        loss = tiny.retrieval_loss(lm, made, 0.2)
        windows = [(texts, 1.0) for texts, _ in made]
    else:
        examples = tiny.examples(objective)
        loss = tiny.token_loss(lm, examples)
        parts = [examples[i : i + per_window] for i in range(0, len(examples), per_window)]
        windows = [([t for t, _ in part], sum(w for _, ws in part for w in ws)) for part in parts]
    if router_loss:
        total = sum(weight for _, weight in windows)
        for texts, weight in windows:
            loss = loss + COEFFICIENT * weight / total * balance(lm, texts)
    loss.backward()
    torch.optim.SGD(lm.parameters(), lr=0.1).step()
    return loss.item(), {n: p.detach() for n, p in lm.named_parameters()}


def balance(lm: PreTrainedModel, texts: list[list[int]]) -> torch.Tensor:
    """experts x sum over experts of (share of assignments) x (mean probability), token by token."""
    config: Any = lm.config
    experts = getattr(config, "num_experts", None) or config.num_local_experts
    assigned = [0.0] * experts
    probability = [torch.zeros((), dtype=torch.float64) for _ in range(experts)]
    rows = 0
    for text in texts:
        found = lm.base_model(torch.tensor([text]), use_cache=False, output_router_logits=True)
        for layer in found.router_logits:
            for scores in layer:
                shares = scores.softmax(0)
                for expert in scores.argsort(descending=True)[:2].tolist():
                    assigned[expert] += 1
                probability = [p + share for p, share in zip(probability, shares, strict=True)]
                rows += 1
    return experts * sum(a / rows * (p / rows) for a, p in zip(assigned, probability, strict=True))
