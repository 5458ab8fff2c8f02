"""What a line of a source means: one validated dataclass per task.

A record knows its fields and rules, how it becomes messages (chat tasks), and which of its texts
are source material that may be shortened when the whole does not fit (`source`, `with_source`).
Fields that a task does not know are allowed and left out. Adding a task: one class, one line in
`RECORDS`.
"""

import unicodedata
from dataclasses import field, replace
from functools import cache
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from curriculum.data.sources import Address
from curriculum.errors import UserError

_SHOWN_CHARACTERS = 60


class BadRecord(Exception):
    """A record that breaks a rule of its task: where, which field, which value, which rule."""

    def __init__(self, address: Address, field: str, value: Any, rule: str) -> None:
        self.address, self.field, self.value, self.rule = address, field, value, rule
        shown = "" if value is None and field else _shortened(value)
        what = f"{field}={shown}" if field and shown else field or shown
        super().__init__(f"{address}: {what}: {rule}")

    @property
    def reason(self) -> str:
        """The complaint without place and value: what such records are counted under."""
        path = "".join(part for part in self.field if not part.isdigit()).replace("[]", "")
        return f"bad record: {path}: {self.rule}" if path else f"bad record: {self.rule}"


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "must not be empty")
    return text


Filled = Annotated[str, AfterValidator(_not_blank)]
Flag = Annotated[bool, Field(strict=True)]


@dataclass
class Message:
    """One turn. An assistant turn has content or tool calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.role == "assistant" and not (self.content or "").strip() and not self.tool_calls:
            raise _broken("content", self.content, "an assistant turn must not be empty")
        return self

    def to_dict(self) -> dict[str, Any]:
        """As chat templates expect it: content always there, the rest only where given."""
        rest = {"tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id, "name": self.name}
        given = {key: value for key, value in rest.items() if value is not None}
        return {"role": self.role, "content": self.content or "", **given}


def _kind(value: Any) -> str:
    return "(messages)" if isinstance(value, list) else "(text)"


TextOrMessages = Annotated[
    Annotated[Filled, Tag("(text)")]
    | Annotated[list[Message], Field(min_length=1), Tag("(messages)")],
    Discriminator(_kind),
]


class _NoSource:
    """A record without source material that could be shortened."""

    @property
    def source(self) -> list[str]:
        return []

    def with_source(self, source: list[str]) -> Self:
        raise NotImplementedError(f"{type(self).__name__} has no source to shorten")


@dataclass
class Messages(_NoSource):
    """A conversation as it stands."""

    messages: Annotated[list[Message], Field(min_length=1)]

    def to_messages(self) -> list[dict[str, Any]]:
        return [message.to_dict() for message in self.messages]


@dataclass
class PromptCompletion(_NoSource):
    """A prompt and what follows it, each a text or a list of messages."""

    prompt: TextOrMessages
    completion: TextOrMessages

    def to_messages(self) -> list[dict[str, Any]]:
        return [*_turns("user", self.prompt), *_turns("assistant", self.completion)]


def _turns(role: str, value: str | list[Message]) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [message.to_dict() for message in value]


@dataclass
class QA:
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
class Summarization:
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
class Planning:
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
class Instruction:
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


@dataclass
class RetrievalRecord:
    """A query with documents that answer it, and documents that look alike but do not."""

    query: Filled
    positive: Filled | None = None
    positives: Annotated[list[Filled], Field(min_length=1)] | None = None
    negatives: list[Filled] | None = None
    id: Annotated[str, Field(strict=True)] | int | None = field(default=None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.positive is None) == (self.positives is None):
            given = "neither" if self.positive is None else "both"
            raise _broken("positive", given, "exactly one of positive and positives is needed")
        right = {normalised(text) for text in self.answers}
        for place, text in enumerate(self.negatives or []):
            if normalised(text) in right:
                raise _broken(f"negatives[{place}]", text, "a negative must not equal a positive")
        return self

    @property
    def answers(self) -> list[str]:
        """All positives."""
        return [self.positive] if self.positive is not None else list(self.positives or [])


@dataclass
class Text:
    """Running text for the causal objective."""

    text: Filled


ChatRecord = Messages | PromptCompletion | QA | Summarization | Planning | Instruction
Record = ChatRecord | RetrievalRecord | Text

RECORDS: dict[str, type[Any]] = {
    "messages": Messages,
    "prompt_completion": PromptCompletion,
    "qa": QA,
    "summarization": Summarization,
    "planning": Planning,
    "instruction": Instruction,
    "retrieval": RetrievalRecord,
    "text": Text,
}


def is_chat(task: str) -> bool:
    """True for tasks whose records go through the chat template."""
    return hasattr(_record_class(task), "to_messages")


def parse(task: str, line: bytes, address: Address) -> Record:
    """The record on a line, or `BadRecord`."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        snippet = line.decode("utf-8", "backslashreplace")
        raise BadRecord(address, "", snippet, f"not valid JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise BadRecord(address, "", value, "a record is a JSON object")
    try:
        return _adapter(task).validate_python(value)  # type: ignore[no-any-return]
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    raise _bad_record(address, detail)


def to_messages(record: ChatRecord) -> list[dict[str, Any]]:
    """The conversation of a chat record, as dicts that chat templates take."""
    return record.to_messages()


def normalised(text: str) -> str:
    """Text for comparing documents: NFKC, case folded, white space collapsed."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _record_class(task: str) -> type[Any]:
    if task not in RECORDS:
        raise UserError(f"task={task!r}: no such record format; valid: {', '.join(RECORDS)}")
    return RECORDS[task]


@cache
def _adapter(task: str) -> TypeAdapter[Any]:
    return TypeAdapter(_record_class(task))


def _broken(field: str, value: Any, rule: str) -> PydanticCustomError:
    """An error of a rule over several fields that still names the field."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "field": field, "value": value})


def _bad_record(address: Address, detail: Any) -> BadRecord:
    parts = [part for part in detail["loc"] if not str(part).startswith("(")]
    value, rule = detail["input"], detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] == "rule":
        parts.append(detail["ctx"]["field"])
        value = detail["ctx"]["value"]
    elif detail["type"] == "missing":
        value, rule = None, "required, but not given"
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return BadRecord(address, path.removeprefix("."), value, rule)


def _shortened(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 3] + "..."
