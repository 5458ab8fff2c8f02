"""Spans, terminators and loss weights, against what templates are known to write."""

import numpy as np
import pytest
from data_builders import (
    CHATML,
    LLAMA3,
    MARKED,
    PLAIN_NEWLINE,
    THINK_PROMPT,
    THINK_STRIPPING,
    byte_tokenizer,
    decode,
    word_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from curriculum.data.records import Chat, RetrievalRecord
from curriculum.data.render import (
    Unrenderable,
    prompt_ids,
    render_retrieval,
    render_text,
)
from curriculum.data.render import render_chat as render_one
from curriculum.errors import UserError


def _talk(*contents: str, system: str | None = None):
    roles = ["user", "assistant"] * len(contents)
    head = [{"role": "system", "content": system}] if system else []
    return head + [
        {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
    ]


def render_chat(messages, tokenizer, loss_on):
    return render_one(Chat(messages), tokenizer, loss_on)


def _same(one, other) -> bool:
    ids = np.array_equal(one.input_ids, other.input_ids)
    return ids and np.array_equal(one.loss_weights, other.loss_weights)


def _spans(tokenizer, example) -> list[str]:
    """Texts of the maximal runs of trained labels. Label of position i is token i + 1."""
    trained = [False, *(weight > 0 for weight in example.loss_weights[:-1])]
    spans, run = [], []
    for token, on in zip([*example.input_ids, 0], [*trained, False], strict=True):
        if on:
            run.append(token)
        elif run:
            spans.append(decode(tokenizer, run))
            run = []
    return spans


TALK = _talk("hi there", "hello you", "and now", "good bye", system="be kind")
WORDS = ["hi", "there", "hello", "you", "and", "now", "good", "bye", "be", "kind", " ", "\n",
         "\n\n", "user", "assistant", "system"]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "terminator", "whole"),
    [
        (
            CHATML,
            "<|im_end|>",
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi there<|im_end|>\n"
            "<|im_start|>assistant\nhello you<|im_end|>\n<|im_start|>user\nand now<|im_end|>\n"
            "<|im_start|>assistant\ngood bye<|im_end|>\n",
        ),
        (
            LLAMA3,
            "<|eot|>",
            "<|begin|><|head|>system<|/head|>\n\nbe kind<|eot|><|head|>user<|/head|>\n\n"
            "hi there<|eot|><|head|>assistant<|/head|>\n\nhello you<|eot|><|head|>user<|/head|>"
            "\n\nand now<|eot|><|head|>assistant<|/head|>\n\ngood bye<|eot|>",
        ),
    ],
)
def test_spans_are_contents_with_the_terminator_really_rendered(template, terminator, whole):
    tokenizer = word_tokenizer(WORDS, template)
    assert tokenizer.eos_token == "<eos>" != terminator
    example = render_chat(TALK, tokenizer, "assistant")
    assert decode(tokenizer, example.input_ids) == whole
    assert _spans(tokenizer, example) == [f"hello you{terminator}", f"good bye{terminator}"]
    assert tokenizer.eos_token_id not in example.input_ids
    # Per turn: two words, the space between them, the terminator.
    assert sum(example.loss_weights) == 2 * 4
    assert len(example.loss_weights) == len(example.input_ids)
    assert example.loss_weights[-1] == 0


def test_loss_on_the_last_turn_or_on_everything():
    tokenizer = byte_tokenizer()
    last = render_chat(TALK, tokenizer, "last_assistant")
    assert _spans(tokenizer, last) == ["good bye<|im_end|>"]
    everything = render_chat(TALK, tokenizer, "all")
    assert everything.input_ids.tolist() == last.input_ids.tolist()
    assert everything.loss_weights.tolist() == [1.0] * (len(last.input_ids) - 1) + [0.0]


def test_white_space_is_the_terminator_where_nothing_else_follows_the_content():
    tokenizer = byte_tokenizer(PLAIN_NEWLINE)
    example = render_chat(TALK, tokenizer, "assistant")
    assert _spans(tokenizer, example) == ["hello you\n", "good bye\n"]


def test_content_that_ends_in_the_terminator_or_in_white_space():
    tokenizer = byte_tokenizer()
    example = render_chat(_talk("a", "x \n"), tokenizer, "assistant")
    assert _spans(tokenizer, example) == ["x \n<|im_end|>"]
    quoted = render_chat(_talk("a", "<|im_end|>"), tokenizer, "assistant")
    assert _spans(tokenizer, quoted) == ["<|im_end|><|im_end|>"]


def test_templates_with_and_without_generation_markers_train_the_same():
    plain = render_chat(TALK, byte_tokenizer(CHATML), "assistant")
    marked = render_chat(TALK, byte_tokenizer(MARKED), "assistant")
    assert _same(marked, plain)
    assert sum(plain.loss_weights) > 0


def test_pad_token_changes_nothing():
    kinds = [byte_tokenizer(pad=pad) for pad in ("<pad>", "<eos>", None)]
    chats = [render_chat(TALK, tokenizer, "assistant") for tokenizer in kinds]
    ends_turns_with_eos = CHATML.replace("<|im_end|>", "<eos>")
    closing = [
        render_chat(TALK, byte_tokenizer(ends_turns_with_eos, pad=pad), "assistant")
        for pad in ("<pad>", "<eos>", None)
    ]
    texts = [render_text("some text", tokenizer) for tokenizer in kinds]
    for same in (chats, closing, texts):
        assert _same(same[0], same[1]) and _same(same[1], same[2])
    assert _spans(kinds[0], closing[0]) == ["hello you<eos>", "good bye<eos>"]
    assert texts[0].loss_weights[-2] == 1.0  # the prediction of EOS


class TestUnstableTemplates:
    tokenizer = byte_tokenizer(THINK_STRIPPING)

    def test_reasoning_dropped_from_earlier_turns_is_refused_with_turn_and_remedy(self):
        talk = _talk("a", "<think>r</think>x", "b", "<think>s</think>y")
        with pytest.raises(Unrenderable) as caught:
            render_chat(talk, self.tokenizer, "assistant")
        message = str(caught.value)
        assert message.startswith("turn 1: later turns change how this turn is rendered")
        assert "on_unstable" in message and "model.chat_template" in message

    def test_only_the_last_turn_is_checked_when_only_it_is_trained(self):
        talk = _talk("a", "<think>r</think>x", "b", "<think>s</think>y")
        example = render_chat(talk, self.tokenizer, "last_assistant")
        assert _spans(self.tokenizer, example) == ["<think>s</think>y<|im_end|>"]

    @pytest.mark.parametrize("contents", [("a", "x", "b", "y"), ("a", "<think>r</think>x")])
    def test_records_that_the_template_leaves_alone_are_rendered(self, contents):
        example = render_chat(_talk(*contents), self.tokenizer, "assistant")
        expected = [f"{text}<|im_end|>" for text in contents[1::2]]
        assert _spans(self.tokenizer, example) == expected

    def test_a_generation_prompt_that_the_answer_does_not_continue_is_refused(self):
        with pytest.raises(Unrenderable, match="no prefix of the render through it"):
            render_chat(_talk("a", "x"), byte_tokenizer(THINK_PROMPT), "assistant")


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (CHATML, [{"role": "assistant", "content": "x"}], "begins with an assistant turn"),
        (
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            _talk("a", "x"),
            "closes this assistant turn with nothing",
        ),
        (
            "{% for m in messages %}[{{ m.role }}]!{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            _talk("a", "x"),
            "does not render the content",
        ),
        (
            "{{ raise_exception('roles must alternate') }}",
            _talk("a", "x"),
            "roles must alternate",
        ),
    ],
)
def test_what_cannot_be_rendered_says_why(template, messages, reason):
    with pytest.raises(Unrenderable, match=reason):
        render_chat(messages, byte_tokenizer(template), "assistant")


def test_a_think_block_that_the_template_adds_is_part_of_the_turn():
    template = CHATML.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}",
    )
    tokenizer = byte_tokenizer(template)
    example = render_chat(_talk("a", "k"), tokenizer, "assistant")
    assert _spans(tokenizer, example) == ["<think>\n\n</think>\n\nk<|im_end|>"]


def test_the_template_alone_decides_on_bos_in_conversations():
    plain, opened = byte_tokenizer(), byte_tokenizer(bos=True)
    assert opened("a")["input_ids"][0] == opened.bos_token_id
    one, other = (render_chat(TALK, tokenizer, "assistant") for tokenizer in (plain, opened))
    assert _same(one, other)
    assert prompt_ids(Chat(TALK), opened) == prompt_ids(Chat(TALK), plain)


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="<|>")).filter(str.strip),
             min_size=2, max_size=6),
    st.sampled_from([CHATML, LLAMA3]),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_any_text_decodes_to_its_contents(contents, template):
    tokenizer = byte_tokenizer(template)
    terminator = "<|im_end|>" if template is CHATML else "<|eot|>"
    written = contents if template is CHATML else [_jinja_trim(text) for text in contents]
    example = render_chat(_talk(*contents), tokenizer, "assistant")
    assert _spans(tokenizer, example) == [f"{text}{terminator}" for text in written[1::2]]
    # Bytes of the contents and one terminator a turn; nothing else is trained.
    expected = sum(len(text.encode()) + 1 for text in written[1::2])
    assert sum(example.loss_weights) == expected


def _jinja_trim(text: str) -> str:
    return text.strip()


@pytest.mark.parametrize("bos", [False, True])
def test_text_is_closed_by_eos_and_opened_by_the_tokenizers_own_rule(bos):
    tokenizer = byte_tokenizer(None, bos=bos)
    example = render_text("ab\u2028c\x0c", tokenizer)
    expected = ("<bos>" if bos else "") + "ab\u2028c\x0c<eos>"
    assert decode(tokenizer, example.input_ids) == expected
    assert example.loss_weights.tolist() == [1.0] * (len(example.input_ids) - 1) + [0.0]


def test_eos_that_the_text_already_has_is_not_doubled():
    tokenizer = byte_tokenizer(None)
    assert decode(tokenizer, render_text("ab<eos>", tokenizer).input_ids) == "ab<eos>"


def test_a_tokenizer_without_eos_is_refused_for_texts():
    tokenizer = byte_tokenizer(None, eos=None)
    record = RetrievalRecord(query="q", positive="p")
    for render in (
        lambda: render_text("a", tokenizer),
        lambda: render_retrieval(record, tokenizer, 8, 2),
    ):
        with pytest.raises(UserError, match="no eos_token"):
            render()


def test_retrieval_texts_keep_eos_when_cut_and_negatives_fill_the_group():
    tokenizer = byte_tokenizer(None, pad="<eos>")
    record = RetrievalRecord(query="q", positives=["1234567890", "z"], negatives=["n1", "n2", "n3"])
    groups = render_retrieval(record, tokenizer, 6, 3)
    assert [decode(tokenizer, ids) for ids in groups] == [
        "q<eos>",
        "12345<eos>",
        "n1<eos>",
        "n2<eos>",
    ]
    alone = RetrievalRecord(query="q", positive="p")
    assert len(render_retrieval(alone, tokenizer, 6, 3)) == 2
