"""Conversations, choices, and what JSON leaves open: nulls, double keys, depth, unknown fields."""

import json
import pickle

import pytest

from curriculum.data.records import BadRecord, parse, to_chat, to_messages
from curriculum.data.sources import Address

HERE = Address("data.jsonl", 12)
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
USER = {"role": "user", "content": "u"}
ASSISTANT = {"role": "assistant", "content": "a"}


def _parse(task, values, **options):
    line = values if isinstance(values, bytes) else json.dumps(values).encode()
    return parse(task, line, HERE, **options)


def _bad(task, values, **options) -> BadRecord:
    with pytest.raises(BadRecord) as caught:
        _parse(task, values, **options)
    message = str(caught.value)
    assert message.startswith("data.jsonl:12: ") and "\n" not in message
    return caught.value


class TestMessages:
    def test_what_a_template_gets(self):
        tools = [{"type": "function", "function": {"name": "f"}}]
        turns = [
            {"role": "system", "content": [{"type": "text", "text": "be "}, {"text": "kind"}]},
            USER,
            {"role": "assistant", "reasoning_content": "r", "tool_calls": [CALL]},
            {"role": "tool", "content": "", "tool_call_id": "1", "name": "f"},
            ASSISTANT,
        ]
        chat = to_chat(_parse("messages", {"messages": turns, "tools": tools}))
        assert chat.messages == [{"role": "system", "content": "be kind"}, *turns[1:]]
        assert (chat.tools, chat.first_trained) == (tools, 0)

    def test_nulls_and_empty_call_lists_are_absent_at_every_depth(self):
        plain = {"messages": [USER, ASSISTANT, {"role": "assistant", "tool_calls": [CALL]}]}
        filled = json.loads(json.dumps(plain))
        for turn in filled["messages"]:
            for key in ("content", "tool_calls", "name", "tool_call_id", "reasoning_content"):
                turn.setdefault(key, None)
        filled["messages"][1]["tool_calls"] = []
        filled["messages"][2]["tool_calls"][0]["function"]["arguments"]["y"] = None
        filled |= {"tools": [], "meta": None}
        one, other = (to_chat(_parse("messages", values)) for values in (plain, filled))
        assert one == other
        assert one.messages == plain["messages"] and one.tools is None

    @pytest.mark.parametrize(
        ("turns", "field", "rule"),
        [
            ([ASSISTANT], "messages[0].role", "begins with a system or a user turn"),
            ([{"role": "tool", "content": "x"}, ASSISTANT], "messages[0].role", "begins with"),
            ([USER, {"role": "developer", "content": "x"}], "messages[1].role", "'tool'"),
            ([USER, {"role": "bot", "content": "x"}], "messages[1].role", "'assistant'"),
            ([{"role": "user"}, ASSISTANT], "messages[0].content", "required, but not given"),
            ([{"role": "user", "content": None}], "messages[0].content", "required"),
            ([{"role": "user", "content": 5}], "messages[0].content", "valid string"),
            ([USER, {"role": "assistant", "content": "", "tool_calls": []}],
             "messages[1].content", "must not be empty"),
            ([USER, {"role": "assistant", "reasoning_content": "r"}],
             "messages[1].content", "must not be empty"),
            ([USER, {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}],
             "messages[1].tool_calls[0]", "a tool call needs a function with a name"),
            ([USER, {"role": "assistant", "tool_calls": [{"arguments": {}}]}],
             "messages[1].tool_calls[0]", "a function with a name"),
            ([USER | {"tool_calls": [CALL]}], "messages[0].tool_calls", "only an assistant turn"),
            ([USER | {"reasoning_content": "r"}], "messages[0].reasoning_content", "only an"),
            ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
             "messages[0].content[0].type", "only parts of type 'text'"),
            ([{"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "text"}]}],
             "messages[0].content[1].text", "a text part needs its text"),
            ([{"role": "user", "content": ["t"]}], "messages[0].content[0]", "an object"),
        ],
    )  # fmt: skip
    def test_rules(self, turns, field, rule):
        error = _bad("messages", {"messages": turns})
        assert error.field == field
        assert rule in error.rule
        if field.endswith("role") or field.endswith("type"):
            assert error.value in str(error)

    @pytest.mark.parametrize("value", ["[]", {"role": "user"}, 3])
    def test_messages_that_are_no_list(self, value):
        assert "valid list" in _bad("messages", {"messages": value}).rule

    def test_the_turns_of_a_prompt_are_not_to_be_trained(self):
        values = {"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT], "tools": [CALL]}
        chat = to_chat(_parse("prompt_completion", values))
        assert (len(chat.messages), chat.first_trained, chat.tools) == (4, 3, [CALL])
        assert to_chat(_parse("prompt_completion", {"prompt": "p", "completion": "c"})) == to_chat(
            _parse("prompt_completion", {"prompt": [USER | {"content": "p"}], "completion": "c"})
        )

    def test_a_prompt_begins_as_a_conversation_does_and_a_completion_need_not(self):
        error = _bad("prompt_completion", {"prompt": [ASSISTANT], "completion": "c"})
        assert error.field == "prompt[0].role"
        _parse("prompt_completion", {"prompt": "p", "completion": [ASSISTANT]})


class TestChoice:
    values = {"prompt": "p", "choices": ["yes", "no", "maybe"], "answer": "no"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("change", "targets"),
        [
            ({}, [0, 1, 0]),
            ({"answer": 2}, [0, 0, 1]),
            ({"answer": None, "target_probs": [0.25, 0.75, 0]}, [0.25, 0.75, 0]),
            ({"answer": None, "target_probs": [0.3, 0.3, 0.4000005]}, [0.3, 0.3, 0.4000005]),
        ],
    )
    def test_targets(self, change, targets):
        record = _parse("choice", self.values | change)
        assert record.targets == targets
        assert record.weight == 1.0

    def test_the_prompt_is_a_text_or_a_conversation(self):
        assert _parse("choice", self.values).prompt_messages() == [USER | {"content": "p"}]
        turns = [{"role": "system", "content": "s"}, USER]
        asked = self.values | {"prompt": None, "messages": turns, "weight": 0, "mix": "m"}
        record = _parse("choice", asked)
        assert record.prompt_messages() == turns
        assert (record.weight, record.mix) == (0.0, "m")
        assert _parse("choice", self.values | {"mix": {"a": 0.5, "b": 2}}).mix == {"a": 0.5, "b": 2}
        assert _parse("choice", self.values | {"weight": None}).weight == 1.0

    @pytest.mark.parametrize(
        ("change", "field", "rule"),
        [
            ({"prompt": None}, "prompt", "exactly one of prompt and messages"),
            ({"messages": [USER]}, "prompt", "exactly one"),
            ({"prompt": None, "messages": [USER, ASSISTANT]}, "messages[1].role", "no assistant"),
            ({"choices": ["yes"]}, "choices", "at least 2"),
            ({"choices": ["yes", "no", "yes"]}, "choices[2]", "must differ"),
            ({"choices": ["yes", " "]}, "choices[1]", "must not be empty"),
            ({"answer": None}, "answer", "exactly one of answer and target_probs"),
            ({"target_probs": [0, 1, 0]}, "answer", "exactly one"),
            ({"answer": 3}, "answer", "an index from 0 to 2"),
            ({"answer": -1}, "answer", "an index from 0 to 2"),
            ({"answer": "No"}, "answer", "must be one of the choices"),
            ({"answer": True}, "answer", "valid"),
            ({"answer": None, "target_probs": [0.5, 0.5]}, "target_probs", "each of the 3"),
            ({"answer": None, "target_probs": [0.5, 0.5, 0.1]}, "target_probs", "sum to 1.1"),
            ({"answer": None, "target_probs": [1.5, -0.5, 0]}, "target_probs[1]", "greater"),
            ({"answer": None, "target_probs": [None, 1, 0]}, "target_probs[0]", "number"),
            ({"weight": -1}, "weight", "greater than or equal to 0"),
            ({"weight": "1"}, "weight", "number"),
            ({"mix": {"a": -1}}, "mix.a", "greater than or equal to 0"),
            ({"mix": {}}, "mix", "at least 1"),
            ({"mix": ""}, "mix", "must not be empty"),
        ],
    )  # fmt: skip
    def test_rules(self, change, field, rule):
        error = _bad("choice", self.values | change)
        assert error.field == field
        assert rule in error.rule

    @pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
    def test_what_is_no_finite_number_is_no_json(self, number):
        line = b'{"prompt": "p", "choices": ["a", "b"], "answer": 0, "weight": ' + number + b"}"
        assert "not valid JSON" in _bad("choice", line).rule


class TestJson:
    @pytest.mark.parametrize(
        ("line", "key"),
        [
            (b'{"prompt": "p", "completion": "a", "completion": "b"}', "completion"),
            (b'{"prompt": "p", "completion": "a", "completion" : "a"}', "completion"),
            (b'{"prompt": "p", "completion": "a", "x": {"k": [{"y": 1, "y": ":"}]}}', "y"),
            # The colon that is lost with a key is made up for by one that only an escape spells.
            (b'{"prompt": "\\u003a", "completion": "a", "x": 1, "x": 2}', "x"),
            (b'{"prompt": "p\\u003A", "completion": "a", "x": 1, "x": 2}', "x"),
            (b'{"prompt": "p", "completion": "a", "x": 1, "\\u0078": 2}', "x"),
        ],
    )
    def test_a_key_that_is_given_twice_is_refused(self, line, key):
        error = _bad("prompt_completion", line)
        assert error.field == key
        assert "the key is given 2 times in one JSON object" in str(error)

    @pytest.mark.parametrize(
        "line",
        [
            b'{"prompt": "a: \\"b\\": c", "completion": "::", "x:y": {"prompt": 1}}',
            b'{"prompt" : "\\u003a",\t"completion":\t"c", "x": [{"k": 1}, {"k": 1}]}',
        ],
    )
    def test_colons_and_equal_keys_of_different_objects_are_no_such_thing(self, line):
        plain = json.loads(line)
        record = _parse("prompt_completion", line)
        assert (record.prompt, record.completion) == (plain["prompt"], plain["completion"])

    @pytest.mark.parametrize("depth", [300, 1000, 5000, 100_000])
    @pytest.mark.parametrize("value", [b'{"text": "a", "x": %s}', b'{"text": "a", "x":%s, "x":1}'])
    def test_depth_is_a_bad_record_and_no_crash(self, value, depth):
        line = value % (b"[" * depth + b"]" * depth)
        assert len(str(_bad("text", line))) < 300

    def test_a_conversation_with_deep_arguments_is_read(self):
        deep: dict = {}
        for _ in range(200):
            deep = {"k": deep}
        call = {"function": {"name": "f", "arguments": deep}}
        record = _parse("messages", {"messages": [USER, ASSISTANT | {"tool_calls": [call]}]})
        assert to_messages(record)[1]["tool_calls"] == [call]


class TestStrict:
    def test_fields_that_a_task_knows_and_an_id_are_allowed(self):
        values = {"question": "q", "answer": "a", "passages": None, "id": "x", "note": None}
        assert _parse("qa", values, strict=True) == _parse("qa", values)

    @pytest.mark.parametrize(
        ("task", "values", "field", "hint"),
        [
            ("qa", {"question": "q", "answer": "a", "passage": ["p"]}, "passage",
             "did you mean 'passages'? valid: question, answer, passages, reasoning"),
            ("text", {"text": "t", "meta": 1}, "meta", "unknown field; valid: text, id"),
            ("messages", {"messages": [USER, ASSISTANT | {"reasoning": "r"}]},
             "messages[1].reasoning", "did you mean 'reasoning_content'?"),
            ("prompt_completion", {"prompt": [USER | {"weight": 1}], "completion": "c"},
             "prompt[0].weight", "valid: role, content"),
        ],
    )  # fmt: skip
    def test_others_are_refused_by_name_and_else_left_out(self, task, values, field, hint):
        error = _bad(task, values, strict=True)
        assert error.field == field
        assert hint in error.rule
        _parse(task, values)

    def test_a_broken_record_is_still_told_as_such(self):
        assert "valid list" in _bad("messages", {"messages": "x"}, strict=True).rule


def test_bad_records_pass_between_processes():
    error = _bad("qa", {"question": "q", "answer": " "})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason, again.address) == (str(error), error.reason, HERE)
