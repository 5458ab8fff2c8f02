"""Which token a choice is, behind its prompt.

The prompt of a record is its conversation, rendered by the chat template with the generation
prompt, and cut and tokenized as training does it: what the assistant wrote in earlier turns apart
from the rest. What the assistant writes next is a segment of its own, which begins with the answer
prefix, if there is one, and goes on with a choice. So a choice is a token if that segment has one
token more with it than without it.

A spelling says how a choice is written there: `{}` as it stands, ` {}` with a space before it. All
choices of a record are spelled alike, in the first declared way in which each of them is one token
and no two are the same. Otherwise the record is refused: the model would be asked about something
else than the choices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curriculum.data.records import Chat, Choice
from curriculum.data.render import (
    Rendered,
    Unrenderable,
    render_chats,
    renders,
    segments,
    tokenize,
    trained_turns,
)
from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SLOT = "{}"


@dataclass(frozen=True)
class Asked:
    """A record as tokens: its prompt, answer prefix included, and the token of each choice."""

    prompt: list[int]
    choices: list[int]
    spelling: str


class NoToken(Exception):
    """A record whose choices are not one distinct token each; the message shows their tokens."""


def check_spellings(spellings: Sequence[str]) -> None:
    """`UserError` unless each says where the choice stands."""
    if not spellings:
        raise UserError(f"spellings=[]: at least one is needed, such as {SLOT!r}")
    for spelling in spellings:
        if spelling.count(SLOT) != 1:
            raise UserError(
                f"spellings: {spelling!r} must hold {SLOT} once, where the choice stands; "
                f"for example {SLOT!r} and ' {SLOT}'"
            )


def ask(
    records: Sequence[Choice],
    tokenizer: "PreTrainedTokenizerFast",
    spellings: Sequence[str],
    prefix: str = "",
) -> list[Asked | Unrenderable | NoToken]:
    """Each record as tokens, or why it has none."""
    chats = [Chat(record.prompt_messages(), record.tools or None) for record in records]
    texts = _prompts(chats, tokenizer)
    flat = [text for one in texts if not isinstance(one, Unrenderable) for text in one]
    pieces = iter(tokenize(flat, tokenizer))
    wanted = {
        prefix + spelling.replace(SLOT, choice)
        for record in records
        for spelling in spellings
        for choice in record.choices
    }
    ordered = sorted(wanted | {prefix})
    answers = dict(zip(ordered, tokenize(ordered, tokenizer), strict=True))
    found: list[Asked | Unrenderable | NoToken] = []
    for record, one in zip(records, texts, strict=True):
        if isinstance(one, Unrenderable):
            found.append(one)
            continue
        prompt = [token for _ in one for token in next(pieces)] + answers[prefix]
        try:
            found.append(_asked(record, prompt, tokenizer, spellings, prefix, answers))
        except NoToken as error:
            found.append(error)
    return found


def _asked(
    record: Choice,
    prompt: list[int],
    tokenizer: "PreTrainedTokenizerFast",
    spellings: Sequence[str],
    prefix: str,
    answers: Mapping[str, list[int]],
) -> Asked:
    complaints = []
    for spelling in spellings:
        ids = [answers[prefix + spelling.replace(SLOT, choice)] for choice in record.choices]
        complaint = _complaint(record.choices, ids, answers[prefix], tokenizer)
        if complaint is None:
            return Asked(prompt, [one[-1] for one in ids], spelling)
        complaints.append(f"spelled {spelling!r}: {complaint}" if len(spellings) > 1 else complaint)
    raise NoToken("; ".join(complaints))


def _complaint(
    choices: Sequence[str],
    ids: Sequence[list[int]],
    before: list[int],
    tokenizer: "PreTrainedTokenizerFast",
) -> str | None:
    """Why the choices are not one distinct token each behind the tokens `before`."""
    owner: dict[int, int] = {}
    for place, (choice, one) in enumerate(zip(choices, ids, strict=True)):
        name = f"choices[{place}]={choice!r}"
        if one[:-1] != before:
            begun = one[len(before) :] if one[: len(before)] == before else one
            where = "" if begun is not one or not before else ", answer prefix included"
            return f"{name} is {_shown(begun, tokenizer)}{where}"
        token = one[-1]
        if token == tokenizer.unk_token_id:
            return f"{name} is {_shown([token], tokenizer)}, which stands for any unknown text"
        if token in owner:
            return f"{name} and choices[{owner[token]}] are both {_shown([token], tokenizer)}"
        owner[token] = place
    return None


def _shown(ids: Iterable[int], tokenizer: "PreTrainedTokenizerFast") -> str:
    parts = [f"{tokenizer.backend_tokenizer.decode([i], skip_special_tokens=False)!r} ({i})"
             for i in ids]  # fmt: skip
    return f"{len(parts)} token{'s' * (len(parts) != 1)}: {' '.join(parts)}" if parts else "nothing"


def _prompts(
    chats: Sequence[Chat], tokenizer: "PreTrainedTokenizerFast"
) -> list[list[str] | Unrenderable]:
    """Each conversation with the generation prompt, cut where training cuts it.

    A template that rewrites earlier turns leaves nothing to cut at: then the prompt is one text, as
    it is for training under `data.on_unstable: split`.
    """
    prompts = renders(chats, tokenizer, prompt=True)
    several = [place for place, chat in enumerate(chats) if trained_turns(chat, "assistant")]
    closed = dict(
        zip(several, render_chats([chats[p] for p in several], tokenizer, "assistant"), strict=True)
    )
    texts: list[list[str] | Unrenderable] = []
    for place, prompt in enumerate(prompts):
        if isinstance(prompt, Unrenderable):
            texts.append(prompt)
            continue
        earlier = closed.get(place)
        spans = earlier.spans if isinstance(earlier, Rendered) else []
        if spans and not prompt.text.startswith(earlier.text[: spans[-1][1]]):
            spans = []
        parts = segments(Rendered(prompt.text, spans), "assistant")
        texts.append([part.text for part in parts])
    return texts
