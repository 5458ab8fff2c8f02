"""Free-running generation from held-out prompts, greedy: what perplexity cannot show.

A model can gain perplexity on every task and still copy, loop, or answer every prompt with the same
sentence. So each output is looked at for itself (right? does it stop? does it repeat?) and all of
them together (how much of the output is one sentence? does the model abstain where it should?).
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from curriculum.config import Config, Model
from curriculum.data.abstention import is_abstention
from curriculum.data.records import QA, ChatRecord, is_chat, to_chat
from curriculum.data.render import LossOn, Unrenderable, prompt_ids, trained_turns
from curriculum.data.tokenizer import end_of_turn_ids
from curriculum.probes.base import (
    Evaluator,
    Heldout,
    Prepared,
    ProbeResult,
    heldout_sets,
    model_values,
    probe_name,
    read_records,
)
from curriculum.probes.text import (
    abstention_scores,
    exact_match,
    mean,
    most_common_share,
    repeated_trigram_rate,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KIND = "generation"
_EXCERPT = 200
_POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """One held-out record: its prompt as token ids, and what should follow.

    `answerable` is None for every task but qa. `reasoning`: the target holds a chain of reasoning,
    and the answer is what follows its last blank line.
    """

    record: str
    excerpt: str
    input_ids: list[int]
    target: str
    answerable: bool | None = None
    reasoning: bool = False


@dataclass(frozen=True)
class GenerationProbe:
    """Greedy outputs for the prompts of one phase. `over_long`, `skipped`: records left out."""

    name: str
    phase: str
    objective: str
    prompts: list[Prompt]
    tokenizer: "PreTrainedTokenizerFast"
    stop_ids: frozenset[int]
    max_tokens: int
    over_long: int
    skipped: int
    kind: str = KIND
    reason: str | None = None

    def run(self, evaluator: Evaluator) -> ProbeResult:
        inputs = [prompt.input_ids for prompt in self.prompts]
        outputs = evaluator.generate(inputs, self.max_tokens, self.stop_ids)
        rows = [
            _row(prompt, tokens, self.tokenizer, self.stop_ids)
            for prompt, tokens in zip(self.prompts, outputs, strict=True)
        ]
        values = summarise(rows) | {"over_long": self.over_long, "skipped": self.skipped}
        return ProbeResult(self.name, self.phase, values, rows, KIND, self.objective)


def prepare(config: Config, tokenizer: "PreTrainedTokenizerFast") -> list[Prepared]:
    """A probe for each generative held-out set of the (scaled) plan."""
    held_sets = heldout_sets(config, ("generative",))
    return [_prepare(config, held, tokenizer) for held in held_sets if is_chat(held.settings.task)]


def _prepare(config: Config, held: Heldout, tokenizer: "PreTrainedTokenizerFast") -> Prepared:
    if held.reason:
        return held.absent(KIND, held.reason)
    stop_ids = frozenset(end_of_turn_ids(tokenizer))
    if not stop_ids:
        return held.absent(KIND, "the tokenizer has neither an end-of-turn token nor EOS")
    new_tokens = config.probes.generation_max_tokens
    positions = model_positions(config.model)
    room = None if positions is None else positions - new_tokens
    prompts, over_long, skipped = _prompts(held, tokenizer, config.probes.generation_records, room)
    left_out = f"{over_long} beyond the model's positions, {skipped} without prompt and answer"
    if not prompts:
        return held.absent(KIND, f"no prompt to generate from ({left_out})")
    name = probe_name(held.phase, KIND)
    if over_long or skipped:
        log.warning("probe %s leaves records out: %s", name, left_out)
    return GenerationProbe(
        name, held.phase, held.objective, prompts, tokenizer, stop_ids, new_tokens,
        over_long, skipped,
    )  # fmt: skip


def _prompts(
    held: Heldout, tokenizer: "PreTrainedTokenizerFast", limit: int | None, room: int | None
) -> tuple[list[Prompt], int, int]:
    """Prompts of at most `room` tokens, how many were longer, and how many have none."""
    prompts: list[Prompt] = []
    over_long = skipped = 0
    for record_id, record in read_records(held, limit):
        try:
            data = held.settings.data
            prompt = build_prompt(record_id, record, tokenizer, data.loss_on, data.on_unstable)
        except Unrenderable:
            prompt = None
        if prompt is None:
            skipped += 1
        elif room is not None and len(prompt.input_ids) > room:
            over_long += 1
        else:
            prompts.append(prompt)
    return prompts, over_long, skipped


def build_prompt(
    record_id: str,
    record: ChatRecord,
    tokenizer: "PreTrainedTokenizerFast",
    loss_on: LossOn = "assistant",
    on_unstable: str = "refuse",
) -> Prompt | None:
    """The record up to its last assistant turn, as in training; None if it has none with text."""
    chat = to_chat(record)
    turns = trained_turns(chat, "last_assistant")
    target = chat.messages[turns[-1]].get("content", "") if turns else ""
    if not turns or turns[-1] == 0 or not target.strip():
        return None
    answerable, reasoning = None, False
    if isinstance(record, QA):
        given = record.answerable
        answerable = not is_abstention(record.answer) if given is None else given
        reasoning = bool(record.reasoning)
    excerpt = chat.messages[turns[-1] - 1].get("content", "")[:_EXCERPT]
    ids = prompt_ids(chat, tokenizer, loss_on, on_unstable)
    return Prompt(record_id, excerpt, ids, target, answerable, reasoning)


def _row(
    prompt: Prompt,
    tokens: Sequence[int],
    tokenizer: "PreTrainedTokenizerFast",
    stop_ids: frozenset[int],
) -> dict[str, Any]:
    stopped = bool(tokens) and tokens[-1] in stop_ids
    content = list(tokens[:-1] if stopped else tokens)
    output = tokenizer.decode(content, skip_special_tokens=True).strip()
    answer = _after_reasoning(output) if prompt.reasoning else output
    target = _after_reasoning(prompt.target) if prompt.reasoning else prompt.target
    return {
        "record": prompt.record,
        "prompt": prompt.excerpt,
        "output": output,
        "target": prompt.target,
        "answer": answer,
        "exact_match": exact_match(answer, target),
        "stopped": stopped,
        "tokens": len(content),
        "repeated_trigram_rate": repeated_trigram_rate(content),
        "answerable": prompt.answerable,
        "abstained": None if prompt.answerable is None else is_abstention(answer),
    }


def _after_reasoning(text: str) -> str:
    """What follows the last blank line; a tokenizer may have put spaces on that line."""
    return _BLANK_LINE.split(text)[-1].strip()


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The figures of at least one row.

    For qa (rows that say whether they are answerable) exact match and the most common output are
    taken over answerable records, and abstention is scored; a figure over no record is left out.
    """
    asked = [row for row in rows if row["answerable"] is not None]
    judged = [row for row in rows if row["answerable"] is not False]
    figures: dict[str, float | None] = {
        "records": len(rows),
        "exact_match": mean([row["exact_match"] for row in judged]),
        "repeated_trigram_rate": mean([row["repeated_trigram_rate"] for row in rows]),
        "stopped_share": mean([row["stopped"] for row in rows]),
        "most_common_output_share": most_common_share([row["answer"] for row in judged]),
    }
    if asked:
        unanswerable = [not row["answerable"] for row in asked]
        figures |= abstention_scores([row["abstained"] for row in asked], unanswerable)
        figures["answerable"] = len(asked) - sum(unanswerable)
        figures["unanswerable"] = sum(unanswerable)
    return {key: value for key, value in figures.items() if value is not None}


def model_positions(model: Model) -> int | None:
    """How many positions the model has, by its config; None where it names no such limit."""
    values = model_values(model)
    for place in (values, values.get("text_config") or {}):
        for key in _POSITION_KEYS:
            if isinstance(place.get(key), int):
                return place[key]
    return None
