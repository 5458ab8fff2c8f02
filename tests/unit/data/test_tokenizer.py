"""Loading, templates, digests and stop tokens."""

import pytest
from data_builders import (
    CHATML,
    GEMMA,
    LLAMA3,
    PLAIN_NEWLINE,
    QWEN3,
    THINK_PROMPT,
    bpe_tokenizer,
    byte_tokenizer,
)

from curriculum.config import Model
from curriculum.data.render import render_text, tokenize
from curriculum.data.tokenizer import (
    end_of_turn_ids,
    load_tokenizer,
    require_chat_template,
    tokenizer_digest,
)
from curriculum.errors import UserError


def _model(path=None, tokenizer=None, chat_template=None) -> Model:
    return Model(
        name="m",
        path=None if path is None else str(path),
        config=None,
        tokenizer=None if tokenizer is None else str(tokenizer),
        chat_template=chat_template,
        parameters=None,
    )


def test_loaded_from_either_option_with_equal_tokens_and_template(tmp_path):
    saved = byte_tokenizer()
    saved.save_pretrained(tmp_path)
    for model in (_model(path=tmp_path), _model(path="/nowhere", tokenizer=tmp_path)):
        loaded = load_tokenizer(model)
        assert loaded("aé<|im_end|>")["input_ids"] == saved("aé<|im_end|>")["input_ids"]
        assert loaded.chat_template == CHATML
        assert tokenizer_digest(loaded) == tokenizer_digest(saved)


def test_limits_saved_with_the_tokenizer_cut_and_pad_nothing(tmp_path):
    saved = byte_tokenizer()
    saved.backend_tokenizer.enable_truncation(3)
    saved.backend_tokenizer.enable_padding(length=20)
    saved.model_max_length = 4
    saved.save_pretrained(tmp_path)
    assert '"max_length": 3' in (tmp_path / "tokenizer.json").read_text()
    loaded = load_tokenizer(_model(tmp_path))
    assert [len(ids) for ids in tokenize(["abcdefghij", "a"], loaded)] == [10, 1]
    assert len(render_text("abcdefghij", loaded).input_ids) == 11


@pytest.mark.parametrize("make", [byte_tokenizer, bpe_tokenizer])
@pytest.mark.parametrize("special", [False, True])
def test_texts_are_cut_into_the_tokens_that_transformers_gives(make, special):
    tokenizer = make(bos=True)
    texts = ["user: hello there\n", "", "<|im_end|> ünïcode €", "a" * 50] * 300
    assert (
        tokenize(texts, tokenizer, special)
        == (tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"])
    )
    tokenizer.split_special_tokens = True
    spelt = tokenize(["<|im_end|>"], tokenizer)
    assert spelt == tokenizer(["<|im_end|>"], add_special_tokens=False)["input_ids"]
    assert len(spelt[0]) > 1


def test_template_override_by_text_and_by_file(tmp_path):
    byte_tokenizer(None).save_pretrained(tmp_path)
    file = tmp_path / "own.jinja"
    file.write_text(LLAMA3)
    for override in (LLAMA3, str(file)):
        assert load_tokenizer(_model(tmp_path, chat_template=override)).chat_template == LLAMA3


def test_generation_markers_are_valid_template_text(tmp_path):
    byte_tokenizer(None).save_pretrained(tmp_path)
    marked = "{%- generation -%}{{ messages[0].content }}{%- endgeneration -%}"
    assert load_tokenizer(_model(tmp_path, chat_template=marked)).chat_template == marked


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: _model(), "model.tokenizer and model.path are both null"),
        (lambda d: _model(path=d / "no"), r"model\.path=.*no tokenizer\.json"),
        (lambda d: _model(tokenizer=d / "no"), r"model\.tokenizer=.*no tokenizer\.json"),
        (lambda d: _model(d / "broken"), "broken: the tokenizer cannot be loaded"),
        (lambda d: _model(d / "ok", chat_template="{% for %}"), "not valid Jinja, line 1"),
        (lambda d: _model(d / "ok", chat_template="x.jinja"), "x.jinja: cannot be read: No such"),
    ],
)
def test_what_cannot_be_loaded_is_one_clear_line(tmp_path, make, message):
    byte_tokenizer().save_pretrained(tmp_path / "ok")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_missing_template_names_phase_and_option_and_spares_phases_without_chat():
    bare = byte_tokenizer(None)
    with pytest.raises(UserError, match=r"phase rag: task=qa .*model\.chat_template"):
        require_chat_template("rag", "qa", bare)
    for task in ("text", "retrieval"):
        require_chat_template("one", task, bare)
    require_chat_template("one", "qa", byte_tokenizer())


def test_digest_ignores_use_and_template_but_not_vocabulary_or_eos():
    one = byte_tokenizer()
    value = tokenizer_digest(one)
    one(["a", "bb"], padding=False, truncation=True, max_length=1)
    assert tokenizer_digest(one) == value == tokenizer_digest(byte_tokenizer(LLAMA3))
    assert tokenizer_digest(byte_tokenizer(eos="<|im_end|>")) != value
    assert tokenizer_digest(byte_tokenizer(bos=True)) != value
    other = byte_tokenizer()
    other.add_tokens(["new"])
    assert tokenizer_digest(other) != value


@pytest.mark.parametrize(
    ("template", "stops"),
    [
        (CHATML, {"<|im_end|>", "<eos>"}),
        (LLAMA3, {"<|eot|>", "<eos>"}),
        (CHATML.replace("<|im_end|>", "</assistant>"), {"<eos>"}),  # many tokens
        (PLAIN_NEWLINE, {"Ċ", "<eos>"}),  # a line feed, as byte-level vocabularies spell it
        (THINK_PROMPT, {"<|im_end|>", "<eos>"}),  # what it writes is known, stable or not
        ("{{ raise_exception('no') }}", {"<eos>"}),
        (QWEN3, {"<|im_end|>", "<eos>"}),
        (GEMMA, {"<end_of_turn>", "<eos>"}),
        (None, {"<eos>"}),
    ],
)
def test_generation_stops_at_the_terminator_that_the_template_writes(template, stops):
    tokenizer = byte_tokenizer(template)
    assert set(tokenizer.convert_ids_to_tokens(end_of_turn_ids(tokenizer))) == stops
