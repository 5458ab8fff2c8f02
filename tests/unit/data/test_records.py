"""What a line means, and what is said about a line that breaks a rule."""

import json

import pytest

from curriculum.data.records import (
    RECORDS,
    BadRecord,
    is_chat,
    normalised,
    parse,
    to_messages,
)
from curriculum.data.sources import Address
from curriculum.errors import UserError

HERE = Address("data.jsonl", 12)


def _parse(task, **values):
    return parse(task, json.dumps(values).encode(), HERE)


def _bad(task, line) -> BadRecord:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(BadRecord) as caught:
        parse(task, raw, HERE)
    assert str(caught.value).startswith("data.jsonl:12: ")
    assert "\n" not in str(caught.value)
    return caught.value


def test_qa_puts_the_question_first_and_numbers_passages():
    record = _parse("qa", question="Who?", answer="Ada", passages=["one", "two"], extra={"x": 1})
    assert to_messages(record) == [
        {"role": "user", "content": "Question: Who?\n\n[1] one\n[2] two"},
        {"role": "assistant", "content": "Ada"},
    ]


def test_qa_without_passages_and_with_reasoning():
    record = _parse("qa", question="Who?", answer="Ada", reasoning="She wrote it.", passages=None)
    user, assistant = to_messages(record)
    assert user["content"] == "Question: Who?"
    assert assistant["content"] == "She wrote it.\n\nAda"


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        (
            "summarization",
            {"document": "Long.", "summary": "S."},
            [("user", "Summarize:\n\nLong."), ("assistant", "S.")],
        ),
        (
            "planning",
            {"request": "Tea", "plan": "1. Boil", "context": "Kettle"},
            [("user", "Plan: Tea\n\nKettle"), ("assistant", "1. Boil")],
        ),
        (
            "planning",
            {"request": "Tea", "plan": "1. Boil"},
            [("user", "Plan: Tea"), ("assistant", "1. Boil")],
        ),
        (
            "instruction",
            {"instruction": "Add", "input": "1 2", "response": "3", "system": "Be brief"},
            [("system", "Be brief"), ("user", "Add\n\n1 2"), ("assistant", "3")],
        ),
        (
            "instruction",
            {"instruction": "Hi", "input": "", "response": "Ho"},
            [("user", "Hi"), ("assistant", "Ho")],
        ),
        (
            "prompt_completion",
            {"prompt": "p", "completion": "c"},
            [("user", "p"), ("assistant", "c")],
        ),
        (
            "prompt_completion",
            {"prompt": [{"role": "system", "content": "s"}], "completion": "c"},
            [("system", "s"), ("assistant", "c")],
        ),
        (
            "messages",
            {
                "messages": [
                    {"role": "user", "content": "u", "x": 1},
                    {"role": "tool", "content": ""},
                ]
            },
            [("user", "u"), ("tool", "")],
        ),
    ],
)
def test_messages_of_chat_tasks(task, values, expected):
    messages = to_messages(_parse(task, **values))
    assert messages == [{"role": role, "content": content} for role, content in expected]


def test_text_keeps_every_character():
    text = "a\u2028b\u0085c\x0cd\re\n "
    assert _parse("text", text=text).text == text


@pytest.mark.parametrize(
    ("task", "line", "field", "rule"),
    [
        ("qa", {"question": "q"}, "answer", "required"),
        ("qa", {"question": "q", "answer": " \n"}, "answer", "must not be empty"),
        ("qa", {"question": 5, "answer": "a"}, "question", "valid string"),
        ("qa", {"question": "q", "answer": "a", "passages": ["p", ""]}, "passages[1]", "empty"),
        ("qa", {"question": "q", "answer": "a", "answerable": "no"}, "answerable", "boolean"),
        ("text", {"text": None}, "text", "required, but null"),
        ("qa", {"question": "q", "answer": None, "x": None}, "answer", "required, but null"),
        ("messages", {"messages": []}, "messages", "at least 1"),
        ("messages", {"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", "user"),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": " "}]},
            "messages[0].content",
            "must not be empty",
        ),
        ("prompt_completion", {"prompt": 3, "completion": "c"}, "prompt", "string"),
        (
            "prompt_completion",
            {"prompt": [{"role": "user", "content": "u"}, {"content": "x"}], "completion": "c"},
            "prompt[1].role",
            "required",
        ),
        ("retrieval", {"query": "q"}, "positive", "exactly one"),
        ("retrieval", {"query": "q", "positive": "p", "positives": ["r"]}, "positive", "one"),
        ("retrieval", {"query": "q", "positives": []}, "positives", "at least 1"),
        ("retrieval", {"query": "", "positive": "p"}, "query", "must not be empty"),
        (
            "retrieval",
            {"query": "q", "positive": "The  Cat", "negatives": ["dog", "THE cat\n"]},
            "negatives[1]",
            "must not equal",
        ),
    ],
)
def test_a_bad_record_names_place_field_value_and_rule(task, line, field, rule):
    error = _bad(task, line)
    assert error.field == field
    assert rule in str(error)
    assert f"data.jsonl:12: {field}" in str(error)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (b'{"text": "a"', "not valid JSON"),
        (b'{"text": "a"} {"text": "b"}', "not valid JSON"),
        (b'{"text": "a"}\r{"text": "b"}', "not valid JSON"),
        (b'{"text": "\xff"}', "not valid JSON"),
        (b'{"text": NaN}', "not valid JSON"),
        (b"[1, 2]", "a record is a JSON object"),
        (b"3", "a record is a JSON object"),
        (b"null", "a record is a JSON object"),
        (b'"text"', "a record is a JSON object"),
    ],
)
def test_a_line_that_is_no_json_object(line, rule):
    assert rule in str(_bad("text", line))


def test_long_values_are_shortened():
    assert len(str(_bad("retrieval", {"query": "q" * 1000}))) < 200
    error = _bad("text", {"text": ["x" * 5000]})
    assert len(str(error)) < 200


def test_reasons_leave_place_and_value_out():
    row = {"question": "q", "answer": "a", "passages": ["p", "p", ""]}
    other = {"question": "q", "answer": "a", "passages": [" "]}
    assert (
        _bad("qa", row).reason
        == _bad("qa", other).reason
        == ("bad record: passages: must not be empty")
    )


def test_positives_are_one_list_either_way():
    assert _parse("retrieval", query="q", positive="p").answers == ["p"]
    assert _parse("retrieval", query="q", positives=["p", "r"], id=3).answers == ["p", "r"]


def test_normalised_text_ignores_case_width_and_space():
    assert normalised("  \uff21 Cat\u00a0sat\n") == normalised("a cat SAT") == "a cat sat"
    assert normalised("a cat") != normalised("acat")


def test_unknown_task_lists_the_valid_ones():
    with pytest.raises(UserError, match=r"task='haiku'.*qa"):
        parse("haiku", b"{}", HERE)


def test_chat_tasks_are_those_with_a_conversation():
    assert {task for task in RECORDS if not is_chat(task)} == {
        "text",
        "retrieval",
        "choice",
    }
