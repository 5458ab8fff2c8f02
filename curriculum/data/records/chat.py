"""Records of the tasks that are conversations, and how each becomes one.

A record says what its messages are, which tools go with them (`tools`), from which message on
assistant turns may be trained (`first_trained`), and which of its texts are source material that
may be shortened when the whole does not fit (`source`, `with_source`).
"""

from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from curriculum.data.records.messages import Conversation, Filled, Message, Tools, Turns

Flag = Annotated[bool, Field(strict=True)]


@plain_dataclass(frozen=True)
class Chat:
    """A conversation as chat templates take it. Turns before `first_trained` are never trained."""

    messages: list[dict[str, Any]]
    tools: Tools | None = None
    first_trained: int = 0


class _Plain:
    """A record without tools, of which every assistant turn is trained, and nothing is cut."""

    tools: Tools | None = None

    @property
    def first_trained(self) -> int:
        return 0

    @property
    def source(self) -> list[str]:
        return []

    def with_source(self, source: list[str]) -> Self:
        raise NotImplementedError(f"{type(self).__name__} has no source to shorten")


@dataclass
class Messages(_Plain):
    """A conversation as it stands."""

    messages: Conversation
    tools: Tools | None = None

    def to_messages(self) -> list[dict[str, Any]]:
        return [message.to_dict() for message in self.messages]


def _kind(value: Any) -> str:
    return "(messages)" if isinstance(value, list) else "(text)"


Prompt = Annotated[
    Annotated[Filled, Tag("(text)")] | Annotated[Conversation, Tag("(messages)")],
    Discriminator(_kind),
]
Completion = Annotated[
    Annotated[Filled, Tag("(text)")] | Annotated[Turns, Tag("(messages)")], Discriminator(_kind)
]


@dataclass
class PromptCompletion(_Plain):
    """A prompt and what follows it, each a text or a list of messages. The completion is trained,
    assistant turns of the prompt are not."""

    prompt: Prompt
    completion: Completion
    tools: Tools | None = None

    @property
    def first_trained(self) -> int:
        return 1 if isinstance(self.prompt, str) else len(self.prompt)

    def to_messages(self) -> list[dict[str, Any]]:
        return [*turns("user", self.prompt), *turns("assistant", self.completion)]


def turns(role: str, value: str | list[Message]) -> list[dict[str, Any]]:
    """Messages as dicts; a text is one message of `role`."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [message.to_dict() for message in value]


@dataclass
class QA(_Plain):
    """A question over numbered passages, or over none. Reasoning comes before the answer."""

    question: Filled
    answer: Filled
    passages: list[Filled] | None = None
    reasoning: str | None = None
    answerable: Flag | None = None

    def to_messages(self) -> list[dict[str, Any]]:
        passages = "\n".join(f"[{n}] {text}" for n, text in enumerate(self.passages or [], 1))
        user = f"Question: {self.question}" + (f"\n\n{passages}" if passages else "")
        answer = f"{self.reasoning}\n\n{self.answer}" if self.reasoning else self.answer
        return _exchange(user, answer)

    @property
    def source(self) -> list[str]:
        return list(self.passages or [])

    def with_source(self, source: list[str]) -> "QA":
        return replace(self, passages=source)


@dataclass
class Summarization(_Plain):
    """A document and its summary."""

    document: Filled
    summary: Filled

    def to_messages(self) -> list[dict[str, Any]]:
        return _exchange(f"Summarize:\n\n{self.document}", self.summary)

    @property
    def source(self) -> list[str]:
        return [self.document]

    def with_source(self, source: list[str]) -> "Summarization":
        return replace(self, document=source[0])


@dataclass
class Planning(_Plain):
    """A request, what is known about it, and the plan that answers it."""

    request: Filled
    plan: Filled
    context: str | None = None

    def to_messages(self) -> list[dict[str, Any]]:
        context = f"\n\n{self.context}" if self.context else ""
        return _exchange(f"Plan: {self.request}{context}", self.plan)

    @property
    def source(self) -> list[str]:
        return [self.context] if self.context else []

    def with_source(self, source: list[str]) -> "Planning":
        return replace(self, context=source[0])


@dataclass
class Instruction(_Plain):
    """An instruction, what it applies to, and the response."""

    instruction: Filled
    response: Filled
    input: str | None = None
    system: str | None = None

    def to_messages(self) -> list[dict[str, Any]]:
        user = self.instruction + (f"\n\n{self.input}" if self.input else "")
        return _exchange(user, self.response, self.system)

    @property
    def source(self) -> list[str]:
        return [self.input] if self.input else []

    def with_source(self, source: list[str]) -> "Instruction":
        return replace(self, input=source[0])


def _exchange(user: str, assistant: str, system: str | None = None) -> list[dict[str, Any]]:
    head = [{"role": "system", "content": system}] if system else []
    return [
        *head,
        {"role": "user", "content": user},
        {"role": "assistant", "content": assistant},
    ]


ChatRecord = Messages | PromptCompletion | QA | Summarization | Planning | Instruction
