"""Retrieval losses in plain PyTorch: every text alone, masks by hand, nothing of the engine's."""

import tiny
import torch
from transformers import PreTrainedModel

Group = tuple[list[list[int]], list[int]]

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "symmetric": {"symmetric": True},
    "mean": {"pooling": "mean"},
    "layer 1": {"layer": 1},
    "mean of layer 2": {"layer": 2, "pooling": "mean", "symmetric": True},
}


def made(count: int) -> list[Group]:
    """The last groups of a step of six: all of them share texts, the last one stands alone."""
    return tiny.groups()[-count:]


def embed(lm: PreTrainedModel, text: list[int], layer: int, pooling: str) -> torch.Tensor:
    """By transformers' own hidden states, except of the last layer, which it gives normed."""
    if layer == lm.config.num_hidden_layers:
        seen: list[torch.Tensor] = []
        norm = lm.base_model.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        lm.base_model(torch.tensor([text]), use_cache=False)
        norm.remove()
        states = seen[0][0]
    else:
        output = lm.base_model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
        states = output.hidden_states[layer][0]
    state = states.mean(0) if pooling == "mean" else states[-1]
    return state / state.norm()


def loss(
    lm: PreTrainedModel,
    groups: list[Group],
    temperature: float,
    symmetric: bool = False,
    layer: int = -1,
    pooling: str = "last",
) -> torch.Tensor:
    """Mean over queries; with `symmetric`, half of it is that over positives."""
    vectors = [[embed(lm, text, layer, pooling) for text in texts] for texts, _ in groups]
    # the ids of what answers each group's query, its own positive and those of equal queries
    right = [{other[1] for _, other in groups if other[0] == own[0]} for _, own in groups]
    losses = []
    for g, (_, _) in enumerate(groups):
        own = vectors[g][0] @ vectors[g][1] / temperature
        documents = [
            vectors[g][0] @ vectors[h][i] / temperature
            for h, (_, ids) in enumerate(groups)
            for i in range(1, len(ids))
            if (h == g and i == 1) or ids[i] not in right[g]
        ]
        forth = torch.logsumexp(torch.stack(documents), 0) - own
        if not symmetric:
            losses.append(forth)
            continue
        queries = [
            vectors[h][0] @ vectors[g][1] / temperature
            for h in range(len(groups))
            if h == g or groups[g][1][1] not in right[h]
        ]
        back = torch.logsumexp(torch.stack(queries), 0) - own
        losses.append((forth + back) / 2)
    return torch.stack(losses).mean()
