"""Tokenizers that come without a chat template."""

import logging

import pytest
from data_builders import CHATML, bpe_tokenizer, byte_tokenizer, decode

from curriculum.config import Model
from curriculum.data.default_template import default_template
from curriculum.data.records import Chat
from curriculum.data.render import render_chat
from curriculum.data.tokenizer import end_of_turn_ids, load_tokenizer
from curriculum.errors import UserError

TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi there"},
    {"role": "assistant", "content": "hello\n\nyou ", "reasoning_content": "greet"},
    {"role": "user", "content": "and now"},
    {"role": "assistant", "content": "good bye"},
]


def _load(directory, chat_template=None):
    return load_tokenizer(Model("m", str(directory), None, None, chat_template, None))


def test_loaded_with_one_line_of_log_and_saved_with_the_model(tmp_path, caplog):
    byte_tokenizer(None).save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, "curriculum"):
        tokenizer = _load(tmp_path)
    (line,) = [record.message for record in caplog.records]
    assert str(tmp_path) in line and "no chat template" in line and "default" in line
    tokenizer.save_pretrained(tmp_path / "saved")
    caplog.clear()
    with caplog.at_level(logging.INFO, "curriculum"):
        again = _load(tmp_path / "saved")
    assert again.chat_template == tokenizer.chat_template and not caplog.records


def test_a_template_that_is_there_or_given_stays(tmp_path):
    byte_tokenizer(CHATML).save_pretrained(tmp_path / "own")
    assert _load(tmp_path / "own").chat_template == CHATML
    byte_tokenizer(None, eos=None).save_pretrained(tmp_path / "none")
    assert _load(tmp_path / "none", CHATML).chat_template == CHATML


def test_a_tokenizer_without_eos_is_refused_with_the_remedy(tmp_path):
    byte_tokenizer(None, eos=None).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"eos_token in its tokenizer_config\.json.*chat_template"):
        _load(tmp_path)


@pytest.mark.parametrize("make", [byte_tokenizer, bpe_tokenizer])
@pytest.mark.parametrize("bos", [False, True])
def test_turns_end_with_eos_and_begin_as_the_tokenizer_begins(make, bos):
    tokenizer = make(None, bos=bos)
    if not bos:
        tokenizer.bos_token = "<bos>"  # known to it, but not put before texts
    tokenizer.chat_template = default_template(tokenizer)
    example = render_chat(Chat(TALK), tokenizer, "assistant")
    assert decode(tokenizer, example.input_ids) == ("<bos>" if bos else "") + (
        "System:\nbe kind\n\nUser:\nhi there\n\nAssistant:\ngreet\n\nhello\n\nyou <eos>\n\n"
        "User:\nand now\n\nAssistant:\ngood bye<eos>\n\n"
    )
    trained = example.input_ids[1:][example.loss_weights[:-1] > 0]
    assert decode(tokenizer, trained) == "greet\n\nhello\n\nyou <eos>good bye<eos>"
    assert end_of_turn_ids(tokenizer) == {tokenizer.eos_token_id}
