"""`key=value` words of a command as one typed object."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from curriculum.errors import UserError
from curriculum.naming import nearest

Options = TypeVar("Options")

_OPTION = re.compile(r"[A-Za-z_][\w.]*=")


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Paths, and `key=value` words. A path like `a=b.jsonl` is written `./a=b.jsonl`."""
    return (
        [word for word in words if not _OPTION.match(word)],
        [word for word in words if _OPTION.match(word)],
    )


def parsed(words: Sequence[str], options: type[Options], examples: Mapping[str, str]) -> Options:
    """The options that the words give, the last one of a key counting.

    `options`: a pydantic dataclass; the key of a field is its alias, if it has one. `examples`: a
    value for each required key. `UserError` with one line for every unknown key and wrong value.
    """
    given: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        given[key] = value
    try:
        return TypeAdapter(options).validate_python(given)
    except ValidationError as error:
        known = [key_of(field) for field in fields(options)]  # type: ignore[arg-type]
        details = error.errors(include_url=False)
        lines = [_complaint(detail, known, examples) for detail in details]
        raise UserError("\n".join(dict.fromkeys(lines))) from None


def key_of(field: "Field[Any]") -> str:
    """What a field is called on the command line."""
    alias = getattr(field.default, "alias", None)
    return str(alias or field.name)


def _complaint(detail: Mapping[str, Any], known: Sequence[str], examples: Mapping[str, str]) -> str:
    name = str(detail["loc"][0])
    if detail["type"].startswith("missing"):
        return f"{name}: required, but not given; for example {name}={examples[name]}"
    value = f"{name}={detail['input']}"
    if detail["type"] != "unexpected_keyword_argument":
        return f"{value}: {detail['msg'][0].lower()}{detail['msg'][1:]}"
    return f"{value}: unknown key; {nearest(name, known, 'valid keys:')}"
