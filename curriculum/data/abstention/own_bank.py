"""A bank that a user gives: a file of paraphrases, checked before anything is read or written."""

from collections.abc import Sequence
from pathlib import Path

import orjson

from curriculum.data.abstention.matcher import normalise
from curriculum.data.abstention.slots import SLOT, wrong_slots
from curriculum.errors import UserError


def read_bank(path: Path) -> tuple[str, ...]:
    """A user's bank: one paraphrase a line, or a JSON list of texts.

    `UserError` with one line for every paraphrase that is empty, said twice (case, punctuation and
    white space aside) or has slots other than `{question}` and `{entity}`.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"bank={path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"bank={path}: byte {error.start} is not UTF-8") from None
    if text.lstrip().startswith("["):
        unit, given = "item", _json_list(path, text)
    else:
        # Not splitlines(): it would also split at U+2028 and its like, which are content.
        unit, given = "line", [line.removesuffix("\r") for line in text.split("\n")]
        given = given[:-1] if not given[-1] else given
    if not given:
        raise UserError(f"bank={path}: holds no paraphrase; give one a line, or a JSON list")
    complaints = [
        f"bank={path}: {unit} {number}: {wrong}" for number, wrong in _complaints(given, unit)
    ]
    if complaints:
        raise UserError("\n".join(complaints))
    return tuple(line.strip() for line in given)


def _json_list(path: Path, text: str) -> list[str]:
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UserError(f"bank={path}: not valid JSON ({error.msg})") from None
    for number, value in enumerate(values, 1):
        if not isinstance(value, str):
            raise UserError(f"bank={path}: item {number}: {value!r}: a paraphrase is a text")
    return list(values)


def _complaints(given: Sequence[str], unit: str) -> list[tuple[int, str]]:
    seen: dict[str, int] = {}
    found = []
    for number, paraphrase in enumerate(given, 1):
        key = normalise(paraphrase)
        if wrong := wrong_slots(paraphrase):
            rule = "slots are {question} and {entity}"
            found.append((number, f"{paraphrase!r} has {wrong}; {rule}"))
        elif not normalise(SLOT.sub("", paraphrase)):
            found.append((number, f"{paraphrase!r}: empty; a paraphrase needs words of its own"))
        elif key in seen:
            found.append((number, f"{paraphrase!r} repeats {unit} {seen[key]}"))
        seen.setdefault(key, number)
    return found
