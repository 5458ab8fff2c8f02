"""Conversations as text, by the tokenizer's own chat template, many in one call.

`transformers` renders a list of conversations with one look at the special tokens; the same call
tells where a template's `{% generation %}` blocks fall. What a template raises belongs to the
conversation that made it raise, never to the others of its call.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from jinja2 import TemplateError, TemplateSyntaxError

from curriculum.data.records import Chat
from curriculum.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# A call that fails is repeated for each of its conversations alone, so calls are not too long.
_BATCH_CHATS = 64
_MARKER = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
# A template is a program of its author: it may divide by zero or call a method that is not there.
_RAISED = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
           RecursionError)  # fmt: skip


class Unrenderable(Exception):
    """A record that the template cannot render with exact spans: reason and remedy.

    `unstable`: each turn alone may still be renderable.
    """

    def __init__(
        self, reason: str, remedy: str, turn: int | None = None, unstable: bool = False
    ) -> None:
        self.reason, self.remedy, self.turn, self.unstable = reason, remedy, turn, unstable
        place = "" if turn is None else f"turn {turn}: "
        super().__init__(f"{place}{reason}; {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions pickle by their message, which is not what this one is made from."""
        return Unrenderable, (self.reason, self.remedy, self.turn, self.unstable)


@dataclass(frozen=True)
class Render:
    """The text of a conversation. `marks`: what its generation markers hold, as (start, stop) in
    order, without empty ones; None if the template has no markers."""

    text: str
    marks: list[tuple[int, int]] | None = None


def renders(
    chats: Sequence[Chat], tokenizer: "PreTrainedTokenizerFast", prompt: bool = False
) -> list[Render | Unrenderable]:
    """Each conversation as text, closed, or (`prompt`) with the generation prompt at its end."""
    special = dict(tokenizer.special_tokens_map)
    results: list[Render | Unrenderable] = [
        Unrenderable("the conversation begins with an assistant turn",
                     "remedy: put a user turn first")
    ] * len(chats)  # fmt: skip
    by_tools: dict[bytes, list[int]] = {}
    for place, chat in enumerate(chats):
        if chat.messages:
            key = orjson.dumps(chat.tools) if chat.tools else b""
            by_tools.setdefault(key, []).append(place)
    for places in by_tools.values():
        tools = chats[places[0]].tools
        template = _template(tokenizer, tools)
        options = {
            "tools": tools,
            "chat_template": template,
            "add_generation_prompt": prompt,
            "return_assistant_tokens_mask": not prompt and bool(_MARKER.search(template)),
            **special,
        }
        for start in range(0, len(places), _BATCH_CHATS):
            part = places[start : start + _BATCH_CHATS]
            batch = _rendered([chats[place].messages for place in part], options)
            for place, result in zip(part, batch, strict=True):
                results[place] = result
    return results


def _template(tokenizer: "PreTrainedTokenizerFast", tools: Any) -> str:
    """The template for a conversation with these tools: some tokenizers have one of its own."""
    try:
        return str(tokenizer.get_chat_template(None, tools))
    except ValueError as error:
        raise UserError(
            f"the tokenizer has no chat template that can be used ({error}); give one as "
            "model.chat_template (a Jinja text or a .jinja file)"
        ) from None


def _rendered(
    conversations: list[list[dict[str, Any]]], options: dict[str, Any]
) -> list[Render | Unrenderable]:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, marks = render_jinja_template(conversations=conversations, **options)
    except TemplateSyntaxError:  # no conversation's fault
        raise
    except _RAISED as error:
        if len(conversations) > 1:
            return [_rendered([one], options)[0] for one in conversations]
        text = " ".join(str(error).split()) or type(error).__name__
        return [
            Unrenderable(
                f"the chat template refuses the conversation: {text}",
                "remedy: change the record or model.chat_template",
            )
        ]
    if not options["return_assistant_tokens_mask"]:
        return [Render(text) for text in texts]
    return [
        Render(text, [mark for mark in found if mark[0] < mark[1]])
        for text, found in zip(texts, marks, strict=True)
    ]
