"""Text embeddings from hidden states."""

import torch


def pooled(hidden: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Text embeddings: the final-norm state of each text's last token, L2-normalised in float32.

    hidden `[T, hidden]`, last `[S]`; returns `[S, hidden]`. A zero vector stays zero with a finite
    gradient.
    """
    states = hidden.index_select(0, last).float()
    return states * torch.rsqrt(states.square().sum(-1, keepdim=True) + 1e-12)
