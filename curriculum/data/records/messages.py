"""Turns of a conversation: roles, content, tool calls."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from curriculum.data.records.bad import broken


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "must not be empty")
    return text


def _joined(content: Any) -> Any:
    """Text parts as one string. Anything but a list is left for the validator to judge."""
    if not isinstance(content, list):
        return content
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind is None:
            raise broken(f"[{place}]", part, "a part of a content is an object with type and text")
        if kind != "text":
            raise broken(f"[{place}].type", kind, "only parts of type 'text' can be trained on")
        if not isinstance(part.get("text"), str):
            raise broken(f"[{place}].text", part.get("text"), "a text part needs its text")
        texts.append(part["text"])
    return "".join(texts)


def _named(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise broken("", call, "a tool call needs a function with a name")
    return call


Filled = Annotated[str, AfterValidator(_not_blank)]
Tools = list[dict[str, Any]]


@dataclass
class Message:
    """One turn. An assistant turn has content or tool calls, every other one content."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    reasoning_content: str | None = None
    tool_calls: list[Annotated[dict[str, Any], AfterValidator(_named)]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.role == "assistant":
            if not self.tool_calls and not (self.content and self.content.strip()):
                raise broken("content", self.content, "an assistant turn must not be empty")
            return self
        if self.content is None:
            raise broken("content", None, "required, but not given")
        if self.tool_calls:
            raise broken("tool_calls", self.tool_calls, "only an assistant turn calls tools")
        if self.reasoning_content:
            rule = "only an assistant turn has reasoning"
            raise broken("reasoning_content", self.reasoning_content, rule)
        return self

    def to_dict(self) -> dict[str, Any]:
        """As chat templates expect it: what was not given has no key, and neither has a call list
        that is empty."""
        given: dict[str, Any] = {"role": self.role}
        if self.content is not None:
            given["content"] = self.content
        if self.reasoning_content is not None and self.role == "assistant":
            given["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            given["tool_calls"] = self.tool_calls
        if self.tool_call_id is not None:
            given["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            given["name"] = self.name
        return given


def _opened(messages: list[Message]) -> list[Message]:
    if messages[0].role in ("assistant", "tool"):
        rule = "a conversation begins with a system or a user turn"
        raise broken("[0].role", messages[0].role, rule)
    return messages


Turns = Annotated[list[Message], Field(min_length=1)]
Conversation = Annotated[Turns, AfterValidator(_opened)]
