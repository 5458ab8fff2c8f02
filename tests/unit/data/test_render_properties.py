"""What holds for any conversation, whatever its texts, the template and the tokenizer."""

from itertools import pairwise

import numpy as np
from data_builders import (
    CHATML,
    LLAMA3_INSTRUCT,
    PLAIN_NEWLINE,
    QWEN3,
    SMOLLM2,
    bpe_tokenizer,
    byte_tokenizer,
    config_for,
    decode,
    write_jsonl,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curriculum.data.default_template import default_template
from curriculum.data.examples import build
from curriculum.data.records import Chat
from curriculum.data.render import Segment, encode, prompt_ids, render_chats, tokenize
from curriculum.data.sources import Source

DEFAULT = default_template(byte_tokenizer(None))
TEMPLATES = [CHATML, LLAMA3_INSTRUCT, SMOLLM2, PLAIN_NEWLINE, DEFAULT]
TOKENIZERS = {
    (make, template): make(template, bos=True)
    for make in (byte_tokenizer, bpe_tokenizer)
    for template in [*TEMPLATES, QWEN3]
}
# No text that a template or a tokenizer could take for its own.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=30)
CONTENT = TEXT.filter(lambda text: text.strip() and "\n" not in text.strip())
PLAIN = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def talks(draw):
    contents = draw(st.lists(CONTENT, min_size=2, max_size=7))
    system = draw(st.none() | CONTENT)
    roles = ["user", "assistant"] * len(contents)
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


@given(st.lists(talks(), min_size=1, max_size=4), st.sampled_from(TEMPLATES), st.booleans(),
       st.sampled_from(["assistant", "last_assistant", "all"]))  # fmt: skip
@PLAIN
def test_batches_hold_what_each_conversation_gives_alone(talks, template, merges, loss_on):
    tokenizer = TOKENIZERS[bpe_tokenizer if merges else byte_tokenizer, template]
    chats = [Chat(talk) for talk in talks]
    for chat, one in zip(chats, render_chats(chats, tokenizer, loss_on), strict=True):
        (alone,) = render_chats([chat], tokenizer, loss_on)
        assert one == alone
        assert one.text == tokenizer.apply_chat_template(chat.messages, tokenize=False)
        answers = [m["content"] for m in chat.messages if m["role"] == "assistant"]
        answers = answers[-1:] if loss_on == "last_assistant" else answers
        assert len(one.spans) == len(answers)
        for answer, (start, stop) in zip(answers, one.spans, strict=True):
            assert answer.strip() in one.text[start:stop]
        borders = [border for span in one.spans for border in span]
        assert borders == sorted(borders) and borders[-1] <= len(one.text)
        # Where a prompt ends, the answer begins, and nothing of it was seen.
        prompt = prompt_ids(chat, tokenizer, loss_on)
        assert decode(tokenizer, prompt) == one.text[: one.spans[-1][0]]


@given(st.lists(st.lists(st.tuples(TEXT, st.booleans()), max_size=5), max_size=5), st.booleans())
@PLAIN
def test_every_token_once_in_order_and_labels_stay_inside(groups, merges):
    tokenizer = TOKENIZERS[bpe_tokenizer if merges else byte_tokenizer, CHATML]
    segments = [[Segment(*one) for one in group] for group in groups]
    examples = encode(segments, tokenizer)
    assert len(examples) == len(groups)
    for group, example in zip(groups, examples, strict=True):
        pieces = tokenize([text for text, _ in group], tokenizer)
        ids = [token for piece in pieces for token in piece]
        flags = [on for piece, (_, on) in zip(pieces, group, strict=True) for _ in piece]
        assert example.input_ids.tolist() == ids
        # The label of position i is token i + 1: the first token is never a label, and the last
        # position has none.
        assert example.loss_weights.tolist() == [
            float(on) for on in [*flags[1:], False][: len(ids)]
        ]
        assert example.input_ids.dtype == np.int32 and example.loss_weights.dtype == np.float32


@given(st.lists(talks(), min_size=1, max_size=6), st.sampled_from([CHATML, QWEN3, DEFAULT]),
       st.integers(20, 120))  # fmt: skip
@PLAIN
def test_records_are_kept_whole_or_counted(tmp_path_factory, talks, template, seq_len):
    tokenizer = TOKENIZERS[byte_tokenizer, template]
    folder = tmp_path_factory.mktemp("records")
    source = Source(
        [write_jsonl(folder / "train.jsonl", [{"messages": talk} for talk in talks])], folder
    )
    options = {"seq_len": seq_len, "on_unstable": "split"}
    phase = config_for(folder, "messages", **options).plan.phases["one"]
    items, report = build(source, range(len(talks)), "one", phase, tokenizer)
    turns = [sum(m["role"] == "assistant" for m in talk) for talk in talks]
    split = [
        template is QWEN3 and (count > 1 or talk[-1]["role"] == "user")
        for count, talk in zip(turns, talks, strict=True)
    ]
    several = [count if parts else 1 for count, parts in zip(turns, split, strict=True)]
    assert len(items) + report.drops.total() == sum(several)
    assert report.cuts.total() == sum(split)
    rows = [item.record_id for item in items]
    assert rows == sorted(rows)
    for first, second in pairwise(items):
        assert first.record_id < second.record_id or template is QWEN3
    for item in items:
        whole = tokenizer.apply_chat_template(talks[item.record_id], tokenize=False)
        text = decode(tokenizer, item.input_ids)
        assert text == whole or template is QWEN3
        assert len(item.input_ids) == len(item.loss_weights) <= seq_len
        assert item.loss_weights.any() and item.loss_weights[-1] == 0
