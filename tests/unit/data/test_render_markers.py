"""Templates that say themselves what the assistant wrote: checked, or decisive, never trusted."""

import numpy as np
import pytest
from data_builders import CHATML, LLAMA3, THINK_PROMPT, THINK_STRIPPING, byte_tokenizer, decode

from curriculum.data.records import Chat
from curriculum.data.render import Unrenderable, render_chat

TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi there"},
    {"role": "assistant", "content": "hello you "},
    {"role": "user", "content": "and now"},
    {"role": "assistant", "content": "good bye"},
]
OPEN, CLOSE = "{% generation %}", "{% endgeneration %}"


def _marked(template: str, old: str, new: str) -> str:
    """`template` with `new` in place of `old` for the turns of the assistant."""
    assert old in template
    turn = "{% if m.role == 'assistant' %}" + new + "{% else %}" + old + "{% endif %}"
    # Jinja drops a line feed right behind a block, as it does in the templates of `transformers`.
    return template.replace(old, turn).replace("%}\n", "%}{{ '\n' }}")


CONTENT = "{{ m.content }}"
WHOLE = f"{OPEN}{CONTENT}<|im_end|>{CLOSE}"
AGREEING = {
    "content and end": _marked(CHATML, CONTENT + "<|im_end|>", WHOLE),
    "content only": _marked(CHATML, CONTENT, f"{OPEN}{CONTENT}{CLOSE}"),
    "with the line feed": _marked(
        CHATML, CONTENT + "<|im_end|>\n", f"{OPEN}{CONTENT}<|im_end|>\n{CLOSE}"
    ),
    "in two pieces": _marked(
        CHATML, CONTENT + "<|im_end|>", f"{OPEN}{CONTENT}{CLOSE}{OPEN}<|im_end|>{CLOSE}"
    ),
}


def _trained(example) -> list[int]:
    return example.input_ids[1:][example.loss_weights[:-1] > 0].tolist()


@pytest.mark.parametrize("loss_on", ["assistant", "last_assistant", "all"])
@pytest.mark.parametrize("name", AGREEING)
def test_labels_are_those_of_the_template_without_markers(name, loss_on):
    plain = render_chat(Chat(TALK), byte_tokenizer(CHATML), loss_on)
    marked = render_chat(Chat(TALK), byte_tokenizer(AGREEING[name]), loss_on)
    assert np.array_equal(marked.input_ids, plain.input_ids)
    assert np.array_equal(marked.loss_weights, plain.loss_weights)
    assert plain.loss_weights.sum() > 0


def test_another_template_with_markers_around_what_it_trims():
    plain = byte_tokenizer(LLAMA3)
    content = "{{ m.content | trim }}"
    marked = byte_tokenizer(_marked(LLAMA3, content, f"{OPEN}{content}{CLOSE}"))
    one, other = (render_chat(Chat(TALK), t, "assistant") for t in (plain, marked))
    assert np.array_equal(one.loss_weights, other.loss_weights)
    assert decode(plain, _trained(one)) == "hello you<|eot|>good bye<|eot|>"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (CONTENT, f"{OPEN}{CLOSE}{CONTENT}", "turn 2: .* mark nothing of this"),
        (CONTENT, f"{OPEN}{{{{ m.content[1:] }}}}{CLOSE}", "turn 2: .* not render the content"),
        (
            CONTENT,
            f"{{{{ m.content[0] }}}}{OPEN}{{{{ m.content[1:] }}}}{CLOSE}",
            "turn 2: .* do not hold the content",
        ),
        (
            CONTENT,
            f"{{% if loop.last %}}{OPEN}{CONTENT}{CLOSE}{{% else %}}{CONTENT}{{% endif %}}",
            # Not the last one while the conversation goes on: unmarked there.
            "turn 2: .* mark nothing of this",
        ),
    ],
)
def test_markers_that_disagree_are_refused_with_turn_and_remedy(old, new, reason):
    tokenizer = byte_tokenizer(_marked(CHATML, old, new))
    with pytest.raises(Unrenderable, match=reason) as caught:
        render_chat(Chat(TALK), tokenizer, "assistant")
    assert "remedy: " in str(caught.value) and "model.chat_template" in str(caught.value)


def test_markers_around_what_a_user_wrote_are_refused():
    everywhere = CHATML.replace(CONTENT, f"{OPEN}{CONTENT}{CLOSE}")
    with pytest.raises(Unrenderable, match="hold text outside of this assistant turn"):
        render_chat(Chat(TALK), byte_tokenizer(everywhere), "assistant")


def test_markers_without_any_text_never_train_nothing():
    template = CHATML + f"{{% if false %}}{OPEN}x{CLOSE}{{% endif %}}"
    with pytest.raises(Unrenderable, match="mark nothing"):
        render_chat(Chat(TALK), byte_tokenizer(template), "assistant")


class TestMarkersDecide:
    """Where the template rewrites earlier turns."""

    talk = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>r</think>x"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "<think>s</think>y"},
    )
    turn = (
        "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    )

    @pytest.mark.parametrize(
        "new",
        [OPEN + turn + "<|im_end|>" + CLOSE + "\n", OPEN + turn + CLOSE + "<|im_end|>\n",
         OPEN + turn + "<|im_end|>\n" + CLOSE],
    )  # fmt: skip
    def test_with_the_end_of_turn_that_really_follows(self, new):
        tokenizer = byte_tokenizer(_marked(THINK_STRIPPING, self.turn + "<|im_end|>\n", new))
        example = render_chat(Chat(list(self.talk)), tokenizer, "assistant")
        assert decode(tokenizer, _trained(example)) == "x<|im_end|><think>s</think>y<|im_end|>"
        assert "<think>r" not in decode(tokenizer, example.input_ids)

    def test_where_the_generation_prompt_opens_what_the_answer_lacks(self):
        template = _marked(THINK_PROMPT, CONTENT, f"{OPEN}{CONTENT}{CLOSE}")
        tokenizer = byte_tokenizer(template)
        example = render_chat(Chat(TALK), tokenizer, "last_assistant")
        assert decode(tokenizer, _trained(example)) == "good bye<|im_end|>"

    @pytest.mark.parametrize(
        ("new", "reason"),
        [
            (OPEN + turn + CLOSE + "!<|im_end|>\n", "no end-of-turn"),
            ("{% if loop.last %}" + OPEN + turn + CLOSE + "{% else %}" + turn + "{% endif %}"
             "<|im_end|>\n", "hold 1 pieces of text for 2 assistant turns"),
            (turn + OPEN + CLOSE + "<|im_end|>\n", "later turns change"),
        ],
    )  # fmt: skip
    def test_or_the_record_is_refused(self, new, reason):
        template = _marked(THINK_STRIPPING, self.turn + "<|im_end|>\n", new)
        if "!" in new:  # only in earlier turns, so that the end of the last one is another
            template = template.replace("!", "{% if not loop.last %}!{% endif %}")
        with pytest.raises(Unrenderable, match=reason):
            render_chat(Chat(list(self.talk)), byte_tokenizer(template), "assistant")
