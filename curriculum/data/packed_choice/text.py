"""A bin as a person reads it: the text of each segment, where it is asked, and what is expected."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from curriculum.data.packed_choice.bins import Bin
from curriculum.data.show import CLOSE, OPEN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def bin_text(
    one: Bin,
    number: int,
    tokenizer: "PreTrainedTokenizerFast | None",
    mix_components: Sequence[str] = (),
    targets: Sequence[np.ndarray] | None = None,
) -> str:
    """One paragraph a segment, then its rows. Behind each position that predicts an answer, the
    token that follows stands between white square brackets; in a prompt that ends there, nothing.

    `tokenizer` None shows ids. `targets`: of an evaluation set, by row id.
    """
    lines = [
        f"bin {number}: {len(one.input_ids)} tokens, {len(one.seq_lens)} segments, {one.rows} rows"
    ]
    starts = np.cumsum([0, *one.seq_lens])
    owner = np.searchsorted(starts, one.positions, side="right") - 1
    for segment, (start, stop) in enumerate(pairwise(starts.tolist())):
        rows = np.flatnonzero(owner == segment)
        lines.append(f"\n--- segment {segment}: {stop - start} tokens")
        asked = one.positions[rows] - start + 1
        lines.append(_marked(one.input_ids[start:stop], asked.tolist(), tokenizer))
        for row in rows.tolist():
            lines += _row(one, row, tokenizer, mix_components, targets)
    return "\n".join(lines)


def _marked(
    ids: np.ndarray, asked: Sequence[int], tokenizer: "PreTrainedTokenizerFast | None"
) -> str:
    parts, done = [], 0
    for place in asked:
        parts.append(_decoded(ids[done:place], tokenizer))
        parts.append(f"{OPEN}{_decoded(ids[place : place + 1], tokenizer)}{CLOSE}")
        done = place + 1
    return "".join([*parts, _decoded(ids[done:], tokenizer)])


def _row(
    one: Bin,
    row: int,
    tokenizer: "PreTrainedTokenizerFast | None",
    mix_components: Sequence[str],
    targets: Sequence[np.ndarray] | None,
) -> Iterator[str]:
    start = int(one.choice_counts[:row].sum())
    part = slice(start, start + int(one.choice_counts[row]))
    if one.row_ids is not None:
        probs = None if targets is None else targets[int(one.row_ids[row])]
        notes = [f"row id {one.row_ids[row]}"]
    else:
        probs = one.target_probs[part]
        mix = zip(mix_components, one.mix_weights[row].tolist(), strict=True)
        notes = [f"weight {one.weights[row]:g}", *(f"{name} {share:g}" for name, share in mix)]
    if one.observed_ids is not None:
        notes.append(f"observed {_token(int(one.observed_ids[row]), tokenizer)}")
    yield f"row {row}, position {one.positions[row]}: {', '.join(notes)}"
    for place, token in enumerate(one.choice_ids[part].tolist()):
        share = "" if probs is None else f"{probs[place]:8.4f}"
        yield f"  {share}  {_token(token, tokenizer)}"


def _token(token: int, tokenizer: "PreTrainedTokenizerFast | None") -> str:
    text = "" if tokenizer is None else f"{_decoded(np.array([token]), tokenizer)!r} "
    return f"{text}({token})"


def _decoded(ids: np.ndarray, tokenizer: "PreTrainedTokenizerFast | None") -> str:
    if tokenizer is None:
        return "".join(f" {token}" for token in ids.tolist())
    return str(tokenizer.decode(ids.tolist(), skip_special_tokens=False))
