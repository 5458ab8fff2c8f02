"""From the bytes of one JSON value to a record of a task.

Keys that are null count as absent, at every depth: columnar files fill in nulls where another
record has a value, and a chat template must not see them.
"""

import json
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from curriculum.data.records.bad import BadRecord, bad_record
from curriculum.data.records.chat import (
    QA,
    Chat,
    ChatRecord,
    Instruction,
    Messages,
    Planning,
    PromptCompletion,
    Summarization,
)
from curriculum.data.records.messages import Message
from curriculum.data.records.other import Choice, RetrievalRecord, Text
from curriculum.data.sources import Address, without_nulls
from curriculum.errors import UserError
from curriculum.naming import nearest

Record = ChatRecord | RetrievalRecord | Text | Choice

RECORDS: dict[str, type[Any]] = {
    "messages": Messages,
    "prompt_completion": PromptCompletion,
    "qa": QA,
    "summarization": Summarization,
    "planning": Planning,
    "instruction": Instruction,
    "retrieval": RetrievalRecord,
    "text": Text,
    "choice": Choice,
}

# Every record may carry one: audits report by it, nothing is trained on it.
_IDENTITY = "id"
_OF_MESSAGES = ("messages", "prompt", "completion")


def is_chat(task: str) -> bool:
    """True for tasks whose records become closed conversations."""
    return hasattr(_record_class(task), "to_messages")


def to_messages(record: ChatRecord) -> list[dict[str, Any]]:
    """The conversation of a chat record, as dicts that chat templates take."""
    return record.to_messages()


def to_chat(record: ChatRecord) -> Chat:
    """The conversation with its tools, and where its trained part begins."""
    return Chat(record.to_messages(), record.tools or None, record.first_trained)


def parse(task: str, line: bytes, address: Address, *, strict: bool = False) -> Record:
    """The record in the bytes of one JSON value, or `BadRecord`.

    `strict`: fields that the task does not know are refused instead of left out.
    """
    given = _object(line, address)
    value = without_nulls(given) if b"null" in line else given
    if strict:
        _refuse_unknown(task, value, address)
    try:
        return _adapter(task).validate_python(value)  # type: ignore[no-any-return]
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    raise bad_record(address, detail, given)


def _object(line: bytes, address: Address) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        snippet = line[:200].decode("utf-8", "backslashreplace")
        raise BadRecord(address, "", snippet, f"not valid JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise BadRecord(address, "", value, "a record is a JSON object")
    try:
        again = orjson.dumps(value)
    except TypeError:  # of what was just read, only depth cannot be written
        snippet = line[:200].decode("utf-8", "backslashreplace")
        raise BadRecord(address, "", snippet, "nested too deep: 254 levels at most") from None
    # A key that is given twice is read once, so a colon is lost. Colons are never lost otherwise,
    # and gained only from an escape that stands for one.
    if line.count(b":") != again.count(b":") or b"\\u003" in line:
        _refuse_doubles(line, address)
    return value


def _refuse_doubles(line: bytes, address: Address) -> None:
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            rule = f"the key is given {names.count(double)} times in one JSON object"
            raise BadRecord(address, double, None, rule)
        return values

    try:
        json.loads(line, object_pairs_hook=check)
    except RecursionError:
        raise BadRecord(address, "", None, "nested too deep: 254 levels at most") from None


def _refuse_unknown(task: str, value: dict[str, Any], address: Address) -> None:
    _check_names("", value, [*names_of(_record_class(task)), _IDENTITY], address)
    for field in _OF_MESSAGES:
        turns = value.get(field)
        for place, turn in enumerate(turns if isinstance(turns, list) else []):
            if isinstance(turn, dict):
                _check_names(f"{field}[{place}].", turn, names_of(Message), address)


def _check_names(
    prefix: str, value: dict[str, Any], known: Iterable[str], address: Address
) -> None:
    known = list(dict.fromkeys(known))
    for name in value:
        if name not in known:
            near = nearest(name, known)
            hint = f"{near} " if near.startswith("did") else ""
            rule = f"unknown field; {hint}valid: {', '.join(known)}"
            raise BadRecord(address, f"{prefix}{name}", None, rule)


def names_of(record: type[Any]) -> list[str]:
    """The fields that a record, or a message, knows."""
    return [field.name for field in fields(record)]


def _record_class(task: str) -> type[Any]:
    if task not in RECORDS:
        raise UserError(f"task={task!r}: no such record format; valid: {', '.join(RECORDS)}")
    return RECORDS[task]


@cache
def _adapter(task: str) -> TypeAdapter[Any]:
    return TypeAdapter(_record_class(task))
