"""What the audit looks at in a record: a light reading of the fields that `records.py` validates.

Tens of thousands of records a second pass through here, so nothing is validated beyond what
decides whether the record has a prompt and a target at all. What every task comes down to: turns,
a target, the text that should hold the question, texts that should differ, passages.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Fields = dict[str, Any]
Turn = tuple[str, str]  # role, text

_QUESTION = ("question", "query")
_PROMPT = ("prompt", "text", "input")
_GOLD = frozenset(
    (  # noqa: SIM905
        "gold gold_answer gold_answers answers answer_text reference references short_answer "
        "short_answers"
    ).split()
)


@dataclass(slots=True)
class View:
    """A record of any task. `turns` come before `target`, which is None where nothing answers.

    `asked`: the text that should hold the question, where the task has one. `holder`: a text
    that should hold `question` word for word; None stands for the turns. `distinct`: texts of
    which no two should be equal. `rest`: what else makes the record what it is.
    """

    turns: list[Turn]
    target: str | None
    asked: str | None = None
    distinct: list[str] = field(default_factory=list)
    passages: list[str] = field(default_factory=list)
    question: str | None = None
    holder: str | None = None
    answerable: bool | None = None
    gold: list[str] = field(default_factory=list)
    identifier: str = ""
    rest: str = ""


class Unreadable(Exception):
    """The record lacks what its task needs; preparing the phase says what."""


def view(task: str, fields: Any) -> View:
    """A parsed record of a task. Raises `Unreadable`."""
    if not isinstance(fields, dict):
        raise Unreadable
    seen = _READERS[task](fields)
    if seen.question is None:
        seen.question = next((fields[k] for k in _QUESTION if _filled(fields.get(k))), None)
    if isinstance(fields.get("id"), str | int):
        seen.identifier = str(fields["id"])
    for key in _GOLD.intersection(fields):
        seen.gold += _texts(fields[key])
    return seen


def _messages(fields: Fields) -> View:
    return _conversation(_turns(fields.get("messages"), "user"))


def _prompt_completion(fields: Fields) -> View:
    prompt = _turns(fields.get("prompt"), "user")
    return _conversation([*prompt, *_turns(fields.get("completion"), "assistant")])


def _conversation(turns: list[Turn]) -> View:
    answers = [place for place, (role, _) in enumerate(turns) if role == "assistant"]
    last = answers[-1] if answers else len(turns)
    before = turns[:last]
    asked = next((text for role, text in reversed(before) if role == "user"), None)
    return View(
        before,
        turns[last][1] if answers else None,
        asked,
        _repeatable(turns),
        passages=[text for role, text in before if role != "assistant"],
    )


def _repeatable(turns: list[Turn]) -> list[str]:
    """Turns that should differ: a short one may well be said twice, but not in a row."""
    texts: list[str] = []
    for place, (role, text) in enumerate(turns):
        if len(text) >= _SHORT_TURN or (place and turns[place - 1] == (role, text)):
            texts.append(f"{role} {text}")
        if len(text) < _SHORT_TURN and place + 1 < len(turns) and turns[place + 1] == (role, text):
            texts.append(f"{role} {text}")
    return texts


_SHORT_TURN = 20


def _qa(fields: Fields) -> View:
    question, answer = _need(fields, "question"), _need(fields, "answer")
    passages = fields.get("passages") or []
    if not isinstance(passages, list) or not all(_filled(text) for text in passages):
        raise Unreadable
    numbered = "\n".join(f"[{n}] {text}" for n, text in enumerate(passages, 1))
    user = f"Question: {question}" + (f"\n\n{numbered}" if numbered else "")
    flag = fields.get("answerable")
    return View(
        [("user", user)],
        answer,
        question,
        passages,
        passages,
        question=question,
        holder=next((fields[key] for key in _PROMPT if _filled(fields.get(key))), None),
        answerable=flag if isinstance(flag, bool) else None,
    )


def _summarization(fields: Fields) -> View:
    document = _need(fields, "document")
    turn = ("user", f"Summarize:\n\n{document}")
    return View([turn], _need(fields, "summary"))


def _planning(fields: Fields) -> View:
    request, context = _need(fields, "request"), _optional(fields, "context")
    turn = ("user", f"Plan: {request}" + (f"\n\n{context}" if context else ""))
    return View([turn], _need(fields, "plan"), request)


def _instruction(fields: Fields) -> View:
    instruction, extra = _need(fields, "instruction"), _optional(fields, "input")
    system = _optional(fields, "system")
    head = [("system", system)] if system else []
    turn = ("user", instruction + (f"\n\n{extra}" if extra else ""))
    passages = [extra] if extra else []
    return View([*head, turn], _need(fields, "response"), instruction, passages=passages)


def _retrieval(fields: Fields) -> View:
    query, single, several = _need(fields, "query"), fields.get("positive"), fields.get("positives")
    positives = [single] if single is not None else several
    negatives = fields.get("negatives") or []
    if (single is None) == (several is None) or not positives:
        raise Unreadable
    if not all(
        isinstance(part, list) and all(map(_filled, part)) for part in (positives, negatives)
    ):
        raise Unreadable
    return View(
        [("query", query)],
        None,
        distinct=[*positives, *negatives],
        question=query,
        rest="\x1e".join(positives) + "\x1d" + "\x1e".join(negatives),
    )


def _text(fields: Fields) -> View:
    text = _need(fields, "text")
    return View([("text", text)], None, text)


def _choice(fields: Fields) -> View:
    turns = _turns(fields.get("messages", fields.get("prompt")), "user")
    rest = json.dumps([fields.get("choices"), fields.get("answer"), fields.get("target_probs")])
    asked = next((text for role, text in reversed(turns) if role == "user"), None)
    return View(turns, None, asked, rest=rest)


_READERS: dict[str, Callable[[Fields], View]] = {
    "messages": _messages,
    "prompt_completion": _prompt_completion,
    "qa": _qa,
    "summarization": _summarization,
    "planning": _planning,
    "instruction": _instruction,
    "retrieval": _retrieval,
    "text": _text,
    "choice": _choice,
}


def _filled(value: Any) -> bool:
    return isinstance(value, str) and value != "" and not value.isspace()


def _need(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not _filled(value):
        raise Unreadable
    return value  # type: ignore[return-value]


def _optional(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Unreadable
    return value


def _turns(value: Any, role: str) -> list[Turn]:
    """A text as one turn of `role`, or messages as they are."""
    if isinstance(value, str) and value.strip():
        return [(role, value)]
    if not isinstance(value, list) or not value:
        raise Unreadable
    return [_turn(message) for message in value]


def _turn(message: Any) -> Turn:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unreadable
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") or "" for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if not content and message.get("tool_calls"):
        content = json.dumps(message["tool_calls"], sort_keys=True)
    if content is not None and not isinstance(content, str):
        raise Unreadable
    if message["role"] == "assistant" and not (content or "").strip():
        raise Unreadable
    return message["role"], content or ""


def _texts(value: Any) -> list[str]:
    """The texts of a gold field: one, several, or those under `text`."""
    if isinstance(value, dict):
        value = value.get("text")
    if isinstance(value, str):
        value = [value]
    return [text for text in value if _filled(text)] if isinstance(value, list) else []
