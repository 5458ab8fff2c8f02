"""Choice losses in plain PyTorch: every segment alone, logits of the whole vocabulary, float64."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tiny
import torch
from transformers import PreTrainedModel

from curriculum.data.packed_choice import Bin

COMPONENTS = ("exams", "polls")


@dataclass
class Row:
    """A position of its segment, and what it is asked there."""

    position: int
    choices: list[int]
    targets: list[float]
    weight: float
    mix: list[float] = field(default_factory=lambda: [1.0, 0.0])


@dataclass
class Segment:
    tokens: list[int]
    rows: list[Row]


def segments(count: int = 9, seed: int = 0) -> list[Segment]:
    """One to three rows a segment, 2 to 5 candidates a row; targets with zeros, one-hot and
    uniform; some weights 0, and one segment without a row."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(5, 16))
        tokens = rng.integers(1, tiny.VOCABULARY, length).tolist()
        places = sorted(rng.choice(length - 1, int(rng.integers(1, 4)), replace=False).tolist())
        rows = []
        for place in [] if number == 4 else places:
            size = int(rng.integers(2, 6))
            choices = rng.choice(tiny.VOCABULARY, size, replace=False).tolist()
            kind = len(made) % 3
            if kind == 0:
                targets = [float(i == 1) for i in range(size)]
            elif kind == 1:
                targets = [1 / size] * size
            else:
                drawn = rng.random(size)
                drawn[0] = 0.0
                targets = (drawn / drawn.sum()).tolist()
            weight = (0.1, 5.0, 0.0, 1.0)[int(rng.integers(0, 4))]
            share = float(rng.random())
            rows.append(Row(place, choices, targets, weight, [share, 1 - share]))
        made.append(Segment(tokens, rows))
    return made


def bins(made: list[Segment], per_bin: int) -> list[Bin]:
    """Segments end to end, `per_bin` a bin."""
    return [_bin(made[i : i + per_bin]) for i in range(0, len(made), per_bin)]


def _bin(group: list[Segment]) -> Bin:
    starts = np.cumsum([0, *(len(one.tokens) for one in group)])
    rows = [(start, row) for start, one in zip(starts, group, strict=False) for row in one.rows]
    return Bin(
        input_ids=np.array([t for one in group for t in one.tokens], np.int32),
        seq_lens=np.array([len(one.tokens) for one in group], np.int32),
        positions=np.array([start + row.position for start, row in rows], np.int32),
        choice_ids=np.array([c for _, row in rows for c in row.choices], np.int32),
        choice_counts=np.array([len(row.choices) for _, row in rows], np.int32),
        target_probs=np.array([p for _, row in rows for p in row.targets], np.float32),
        weights=np.array([row.weight for _, row in rows], np.float32),
        mix_weights=np.array([row.mix for _, row in rows], np.float32).reshape(len(rows), 2),
    )


def cross_entropy(q: torch.Tensor, row: Row) -> torch.Tensor:
    return -sum(p * q[i].log() for i, p in enumerate(row.targets) if p)


def kl(q: torch.Tensor, row: Row) -> torch.Tensor:
    return sum(p * (np.log(p) - q[i].log()) for i, p in enumerate(row.targets) if p)


def brier(q: torch.Tensor, row: Row) -> torch.Tensor:
    return sum((q[i] - p) ** 2 for i, p in enumerate(row.targets))


def mix(q: torch.Tensor, row: Row) -> torch.Tensor:
    """As `LOSSES` says: cross entropy and half a Brier in exams, three times the KL in polls."""
    exams = cross_entropy(q, row) + 0.5 * brier(q, row)
    return row.mix[0] * exams + row.mix[1] * 3.0 * kl(q, row)


LOSSES: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor, Row], torch.Tensor]]] = {
    "default": ({}, cross_entropy),
    "kl": ({"import_path": "curriculum.losses.kl"}, kl),
    "brier": ({"import_path": "curriculum.losses.brier"}, brier),
    "mix": (
        {
            "import_path": "curriculum.losses.mix",
            "kwargs": {
                "by_component": {
                    "exams": {"cross_entropy": 1.0, "brier": 0.5},
                    "polls": {"kl": 3.0},
                }
            },
        },
        mix,
    ),
}


def full_logits(lm: PreTrainedModel, segment: Segment) -> torch.Tensor:
    """Of every position and every token, by the model's own head."""
    return lm(torch.tensor([segment.tokens]), use_cache=False).logits[0]


def loss(
    lm: PreTrainedModel,
    made: list[Segment],
    of_row: Callable[[torch.Tensor, Row], torch.Tensor] = cross_entropy,
) -> torch.Tensor:
    """The sum over rows of weight times loss, over the sum of weights."""
    total, weight = torch.zeros((), dtype=torch.float64), 0.0
    for segment in made:
        scores = full_logits(lm, segment)
        for row in segment.rows:
            q = scores[row.position, row.choices].softmax(-1)
            total = total + row.weight * of_row(q, row)
            weight += row.weight
    return total / weight
