"""The page on records says what the code does: its examples are read, its fields are all there."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from data_builders import byte_tokenizer, config_for

from curriculum.config import PhaseData
from curriculum.data import counts
from curriculum.data.default_template import default_template
from curriculum.data.examples import build
from curriculum.data.records import RECORDS, is_chat, parse
from curriculum.data.records.messages import Message
from curriculum.data.sources import Address, Source

PAGE = Path(__file__).parents[3] / "docs" / "records.md"
TEXT = PAGE.read_text(encoding="utf-8")
# ### `task` ... ```json lines ```
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", TEXT + "\n##", re.M | re.S))
CODE = re.compile(r"^```json\n(.*?)^```", re.M | re.S)


def test_every_task_has_a_section_and_a_row_of_the_table():
    assert set(SECTIONS) == set(RECORDS)
    for task in RECORDS:
        assert re.search(rf"^\| `{task}` \|", TEXT, re.M)


@pytest.mark.parametrize("task", RECORDS)
def test_examples_are_records_and_name_every_field(task, tmp_path):
    blocks = CODE.findall(SECTIONS[task])
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines
    for line in lines:
        parse(task, line.encode(), Address("docs", 1), strict=True)
    row = next(row for row in TEXT.splitlines() if row.startswith(f"| `{task}` |"))
    for field in fields(RECORDS[task]):
        assert f"`{field.name}`" in row
    if is_chat(task):
        tokenizer = byte_tokenizer(None)
        tokenizer.chat_template = default_template(tokenizer)
        file = tmp_path / "train.jsonl"
        file.write_text("\n".join(lines), encoding="utf-8")
        phase = config_for(tmp_path, task, seq_len=4000).plan.phases["one"]
        source = Source([file], tmp_path)
        items, report = build(source, range(len(source)), "one", phase, tokenizer)
        assert len(items) == len(lines) and not report.drops


def test_fields_of_a_message_policies_and_reasons_are_named():
    for field in fields(Message):
        assert f"`{field.name}`" in TEXT
    for field in fields(PhaseData):
        if field.name.startswith("on_") and field.name not in ("on_short", "on_exhausted"):
            assert f"`{field.name}" in TEXT
    for name, reason in vars(counts).items():
        if name.isupper() and not name.startswith("_") and isinstance(reason, str):
            assert f"`{reason}`" in TEXT


def test_the_default_template_renders_as_shown():
    shown = re.search(r"^```text\n(.*?)^```", TEXT, re.M | re.S)
    assert shown
    tokenizer = byte_tokenizer(None, eos="<eos>")
    tokenizer.chat_template = default_template(tokenizer)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Paris?"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}],
        },
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    tools = [{"name": "weather", "parameters": {"city": {"type": "string"}}}]
    rendered = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert rendered == shown.group(1) + "\n"
