"""Trained tokens under templates as published, against spans tokenized one by one."""

import pytest
from data_builders import (
    CHATML,
    GEMMA,
    LLAMA3_INSTRUCT,
    PLAIN_NEWLINE,
    QWEN3,
    SMOLLM2,
    SMOLLM2_SYSTEM,
    bpe_tokenizer,
    byte_tokenizer,
    config_for,
    decode,
    write_jsonl,
)

from curriculum.data.examples import build
from curriculum.data.records import Chat
from curriculum.data.render import Unrenderable, prompt_ids, render_chat
from curriculum.data.sources import Source
from curriculum.errors import RunError

THOUGHT = "<think>\n\n</think>\n\n"


def _as_it_is(content: str) -> str:
    return content


# Template, its end-of-turn, what it does to a content, what it puts before a last content.
STABLE = {
    "chatml": (CHATML, "<|im_end|>", _as_it_is, ""),
    "llama3": (LLAMA3_INSTRUCT, "<|eot_id|>", str.strip, ""),
    "gemma": (GEMMA, "<end_of_turn>", str.strip, ""),
    "smollm2": (SMOLLM2, "<|im_end|>", _as_it_is, ""),
}
SINGLE = STABLE | {"qwen3": (QWEN3, "<|im_end|>", lambda text: text.lstrip("\n"), THOUGHT)}
TALKS = [
    ["hi there", "hello you"],
    ["what is it?", " it is a cat,\n\nand a good one \n"],
    ["Grüße, 世界 👋🏽", "naïve café: ½ + ½ = 1 \u2028 ok"],
    ["a", ">"],  # the last letter of several end-of-turns
    ["a", "im_end"],
]
# Template and system prompt; Gemma has no system role.
SYSTEMS = [
    (name, system)
    for name in SINGLE
    for system in (None, "be kind")
    if name != "gemma" or system is None
]
TOKENIZERS = [byte_tokenizer, bpe_tokenizer]


def _messages(contents, system=None):
    head = [{"role": "system", "content": system}] if system else []
    roles = ["user", "assistant"] * len(contents)
    return head + [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


def _trained(example) -> list[int]:
    """Ids of the trained labels: the label of position i is token i + 1."""
    return example.input_ids[1:][example.loss_weights[:-1] > 0].tolist()


def _ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _check(tokenizer, messages, example, end, written, prefix=""):
    answers = [written(m["content"]) for m in messages if m["role"] == "assistant"]
    spans = [[*_ids(tokenizer, prefix + text), *_ids(tokenizer, end)] for text in answers]
    assert _trained(example) == [token for span in spans for token in span]
    assert example.loss_weights.sum() == sum(map(len, spans)) > 0
    assert decode(tokenizer, example.input_ids) == tokenizer.apply_chat_template(
        messages, tokenize=False
    )


@pytest.mark.parametrize("make", TOKENIZERS)
@pytest.mark.parametrize("contents", TALKS, ids=range(len(TALKS)))
@pytest.mark.parametrize(("name", "system"), SYSTEMS)
def test_a_turn_is_its_content_and_its_end(name, contents, system, make):
    template, end, written, prefix = SINGLE[name]
    tokenizer = make(template, bos=True)
    messages = _messages(contents, system)
    example = render_chat(Chat(messages), tokenizer, "assistant")
    _check(tokenizer, messages, example, end, written, prefix)


@pytest.mark.parametrize("make", TOKENIZERS)
@pytest.mark.parametrize(("name", "system"), [case for case in SYSTEMS if case[0] in STABLE])
def test_every_turn_of_a_long_conversation(name, system, make):
    template, end, written, _ = STABLE[name]
    tokenizer = make(template, bos=True)
    messages = _messages([text for talk in TALKS for text in talk], system)
    example = render_chat(Chat(messages), tokenizer, "assistant")
    _check(tokenizer, messages, example, end, written)
    last = render_chat(Chat(messages), tokenizer, "last_assistant")
    assert _trained(last) == [*_ids(tokenizer, written(TALKS[-1][1])), *_ids(tokenizer, end)]


def test_a_role_that_the_template_lacks_is_refused_in_its_words():
    with pytest.raises(Unrenderable, match="System role not supported"):
        render_chat(Chat(_messages(["a", "b"], "s")), byte_tokenizer(GEMMA), "assistant")


def test_the_default_system_prompt_is_shown_and_not_trained():
    tokenizer = byte_tokenizer(SMOLLM2)
    example = render_chat(Chat(_messages(["a", "b"])), tokenizer, "assistant")
    assert SMOLLM2_SYSTEM in decode(tokenizer, example.input_ids)
    assert decode(tokenizer, _trained(example)) == "b<|im_end|>"


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}


class TestQwen3:
    tokenizer = byte_tokenizer(QWEN3)
    talk = tuple(_messages(["a", "one", "b", "two"]))

    def test_several_turns_are_refused_even_without_reasoning(self):
        with pytest.raises(Unrenderable, match="turn 1: later turns change") as caught:
            render_chat(Chat(list(self.talk)), self.tokenizer, "assistant")
        assert "data.on_unstable: split" in str(caught.value)

    def test_or_split_into_what_would_be_served(self, tmp_path):
        reasoned = [dict(message) for message in self.talk]
        reasoned[1]["reasoning_content"] = "first thought"
        reasoned[3]["reasoning_content"] = "second thought"
        file = write_jsonl(
            tmp_path / "train.jsonl", [{"messages": self.talk}, {"messages": reasoned}]
        )
        source = Source([file], tmp_path)
        options = {"seq_len": 400, "on_unstable": "split"}
        phase = config_for(tmp_path, "messages", **options).plan.phases["one"]
        items, report = build(source, [0, 1], "one", phase, self.tokenizer)
        assert [item.record_id for item in items] == [0, 0, 1, 1]
        assert report.cuts == {"conversation split into single turns": 2}
        assert report.cut_at == {"conversation split into single turns": [f"{file}:1", f"{file}:2"]}
        for item, messages in zip(
            items, (self.talk[:2], self.talk, reasoned[:2], reasoned), strict=True
        ):
            served = self.tokenizer.apply_chat_template(
                messages[:-1], tokenize=False, add_generation_prompt=True
            )
            thought = messages[-1].get("reasoning_content", "")
            answer = f"<think>\n{thought}\n</think>\n\n{messages[-1]['content']}<|im_end|>"
            assert decode(self.tokenizer, item.input_ids) == f"{served}{answer}\n"
            assert decode(self.tokenizer, _trained(item)) == answer
        refusing = config_for(tmp_path, "messages", seq_len=400).plan.phases["one"]
        with pytest.raises(RunError, match=r"train\.jsonl:1: turn 1: later turns"):
            build(source, [0, 1], "one", refusing, self.tokenizer)

    def test_tools_reach_every_render_and_calls_are_trained(self):
        messages = [
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "reasoning_content": "look", "tool_calls": [CALL]},
            {"role": "tool", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ]
        example = render_chat(Chat(messages, TOOLS), self.tokenizer, "assistant")
        assert decode(self.tokenizer, example.input_ids) == self.tokenizer.apply_chat_template(
            messages, tools=TOOLS, tokenize=False
        )
        assert decode(self.tokenizer, _trained(example)) == (
            '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": '
            '{"city": "Paris"}}\n</tool_call><|im_end|>' + THOUGHT + "It is sunny.<|im_end|>"
        )
        prompt = prompt_ids(Chat(messages, TOOLS), self.tokenizer)
        served = self.tokenizer.apply_chat_template(
            messages[:-1], tools=TOOLS, tokenize=False, add_generation_prompt=True
        )
        assert decode(self.tokenizer, prompt) == served
        assert "weather" in served[:300]

    def test_a_call_without_reasoning_is_unstable(self):
        messages = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
        ]
        with pytest.raises(Unrenderable, match="turn 1: later turns change"):
            render_chat(Chat(messages, TOOLS), self.tokenizer, "assistant")

    def test_records_with_different_tools_do_not_share_them(self, tmp_path):
        other = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]
        rows = [{"messages": self.talk[:2], "tools": tools} for tools in (TOOLS, other, [], None)]
        source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
        phase = config_for(tmp_path, "messages", seq_len=4000).plan.phases["one"]
        items, _ = build(source, range(4), "one", phase, self.tokenizer)
        texts = [decode(self.tokenizer, item.input_ids) for item in items]
        assert ["weather" in text for text in texts] == [True, False, False, False]
        assert ["clock" in text for text in texts] == [False, True, False, False]
        assert texts[2] == texts[3] and "# Tools" not in texts[2]


def test_a_template_that_ignores_tool_calls_is_refused():
    call = {"name": "weather", "arguments": {}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "Looking.", "tool_calls": [call]},
    ]
    with pytest.raises(Unrenderable, match="turn 1: the template does not render the tool calls"):
        render_chat(Chat(messages), byte_tokenizer(CHATML), "assistant")


@pytest.mark.parametrize("loss_on", ["assistant", "last_assistant", "all"])
@pytest.mark.parametrize("template", [PLAIN_NEWLINE, CHATML])
def test_a_prompt_of_several_turns_is_what_training_saw(template, loss_on):
    tokenizer = bpe_tokenizer(template)
    messages = _messages(["hello there", "hello you", "and now", "good bye"], "be kind")
    example = render_chat(Chat(messages), tokenizer, loss_on)
    prompt = prompt_ids(Chat(messages), tokenizer, loss_on)
    assert example.input_ids[: len(prompt)].tolist() == prompt
    served = tokenizer.apply_chat_template(
        messages[:-1], tokenize=False, add_generation_prompt=True
    )
    assert decode(tokenizer, prompt) == served
    if template is PLAIN_NEWLINE:  # a token of this one would reach across the turn's end
        whole = _ids(tokenizer, served)
        assert (prompt == whole) is (loss_on == "last_assistant")


def test_the_prompt_of_a_split_conversation_is_that_of_its_last_variant():
    tokenizer = byte_tokenizer(QWEN3)
    chat = Chat(_messages(["a", "one", "b", "two"]))
    with pytest.raises(Unrenderable, match="turn 1"):
        prompt_ids(chat, tokenizer)
    served = tokenizer.apply_chat_template(
        chat.messages[:-1], tokenize=False, add_generation_prompt=True
    )
    prompt = prompt_ids(chat, tokenizer, on_unstable="split")
    assert decode(tokenizer, prompt) == served


def test_the_turns_of_a_prompt_are_not_trained():
    tokenizer = byte_tokenizer(CHATML)
    chat = Chat(_messages(["a", "one", "b", "two"]), first_trained=3)
    example = render_chat(chat, tokenizer, "assistant")
    assert decode(tokenizer, _trained(example)) == "two<|im_end|>"
    # A template that rewrites only what is not trained is good enough.
    thinking = byte_tokenizer(QWEN3)
    assert decode(thinking, _trained(render_chat(chat, thinking, "assistant"))) == (
        THOUGHT + "two<|im_end|>"
    )


def test_one_conversation_that_the_template_refuses_does_not_touch_the_others(tmp_path):
    rows = [{"messages": _messages(["a", str(number)])} for number in range(150)]
    rows[70] = {"messages": [{"role": "user", "content": "a"}, *rows[0]["messages"]]}
    source = Source([write_jsonl(tmp_path / "train.jsonl", rows)], tmp_path)
    tokenizer = byte_tokenizer(GEMMA)
    options = {"on_bad_record": "skip", "seq_len": 100}
    phase = config_for(tmp_path, "messages", **options).plan.phases["one"]
    items, report = build(source, range(150), "one", phase, tokenizer)
    assert [item.record_id for item in items] == [n for n in range(150) if n != 70]
    assert report.dropped_at == {
        "unrenderable: the chat template refuses the conversation: Conversation roles must "
        "alternate user/assistant/user/assistant/...": [f"{tmp_path}/train.jsonl:71"]
    }
    for item in items:
        assert decode(tokenizer, _trained(item)) == f"{item.record_id}<end_of_turn>"
