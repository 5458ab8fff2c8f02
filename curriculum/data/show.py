"""A training window as a person reads it: addresses, text, and what is trained."""

from typing import TYPE_CHECKING

import numpy as np

from curriculum.config import Config
from curriculum.data.sources import Source, expand
from curriculum.data.window_set import WindowSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OPEN, CLOSE = "\u27e6", "\u27e7"


def window_text(
    config: Config,
    phase: str,
    windows: WindowSet,
    number: int,
    tokenizer: "PreTrainedTokenizerFast",
) -> str:
    """One paragraph an example. Trained tokens stand between white square brackets.

    A token is trained if the position before it carries loss, because that position predicts it.
    """
    settings, window = config.plan.phases[phase], windows[number]
    source = Source(expand(settings.data.patterns)[0], config.cache.dir)
    grouped = settings.task == "retrieval"
    size = len(window.input_ids)
    lines = [f"phase {phase}, window {number}: {size} tokens, seq_len {settings.seq_len}"]
    ends = np.cumsum(window.seq_lens)
    for place, (end, length) in enumerate(zip(ends, window.seq_lens, strict=True)):
        ids, weights = window.input_ids[end - length : end], window.loss_weights[end - length : end]
        trained = np.concatenate([[False], weights[:-1] > 0])
        record = int(window.record_ids[0 if grouped else place])
        what = ("query" if place == 0 else f"document {place}") if grouped else "example"
        lines.append(
            f"\n--- {what}: {source.address(record)}, {length} tokens, {int(trained.sum())} trained"
        )
        lines.append(_marked(ids, trained, tokenizer))
    return "\n".join(lines)


def _marked(ids: np.ndarray, trained: np.ndarray, tokenizer: "PreTrainedTokenizerFast") -> str:
    borders = np.flatnonzero(np.diff(trained.astype(np.int8))) + 1
    parts = []
    for run, on in zip(np.split(ids, borders), np.split(trained, borders), strict=True):
        text = tokenizer.decode(run.tolist(), skip_special_tokens=False)
        parts.append(f"{OPEN}{text}{CLOSE}" if on[0] else text)
    return "".join(parts)
