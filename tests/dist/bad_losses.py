"""A user's losses with a mistake. Each makes it on one rank alone, and is sound on the others."""

from typing import Any

import torch
import torch.distributed as dist

from curriculum.losses import cross_entropy


def _sound(rank: int, given: Any) -> Any:
    return cross_entropy(**given) if dist.get_rank() != rank else None


def raises(*, rank: int, **given: Any) -> Any:
    if (sums := _sound(rank, given)) is not None:
        return sums
    raise KeyError("no such\ncolumn")


def three(*, rank: int, **given: Any) -> Any:
    return _sound(rank, given) or (1, 2, 3)


def vector(*, rank: int, **given: Any) -> Any:
    logits = given["choice_logits"]
    return _sound(rank, given) or (logits.sum(-1), given["weights"].sum())


def text(*, rank: int, **given: Any) -> Any:
    return _sound(rank, given) or ("0.5", given["weights"].sum())


def detached(*, rank: int, **given: Any) -> Any:
    return _sound(rank, given) or (torch.tensor(1.0), given["weights"].sum())


def nan(*, rank: int, **given: Any) -> Any:
    return _sound(rank, given) or (given["choice_logits"].sum() * torch.nan, given["weights"].sum())


def slope(*, rank: int, **given: Any) -> Any:
    if (sums := _sound(rank, given)) is not None:
        return sums
    loss, weight = cross_entropy(**given)
    return loss + (given["choice_logits"][:, 0] * 0).sqrt().sum(), weight


def exits(*, rank: int, **given: Any) -> Any:
    if (sums := _sound(rank, given)) is not None:
        return sums
    raise SystemExit("enough")


def negative(*, rank: int, **given: Any) -> Any:
    if (sums := _sound(rank, given)) is not None:
        return sums
    loss, weight = cross_entropy(**given)
    return loss, -1000 - weight
