"""Small tokenizers, templates and configurations for the tests of the data path."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from curriculum.config import Config, load

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
PLAIN_NEWLINE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Reasoning of all turns but the last is dropped.
THINK_STRIPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The generation prompt opens a think block that the render of the answer lacks.
THINK_PROMPT = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
MARKED = CHATML.replace(
    "{{ m.content }}<|im_end|>\n",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}",
)

# Templates as published with the models they are named after, word for word where it matters.
LLAMA3_INSTRUCT = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
    "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SMOLLM2_SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3 = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""".strip("\n")  # noqa: E501

SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<eos>",
    "<pad>",
    "<bos>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]


def byte_tokenizer(
    template: str | None = CHATML,
    eos: str | None = "<eos>",
    pad: str | None = None,
    bos: bool = False,
) -> PreTrainedTokenizerFast:
    """One token a byte: decodes any text exactly."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _wrapped(backend, template, eos, pad, bos)


def bpe_tokenizer(
    template: str | None = CHATML, eos: str | None = "<eos>", bos: bool = False
) -> PreTrainedTokenizerFast:
    """Bytes with merges, also across words and lines: what a text is cut into depends on where it
    is cut."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_BPE_CORPUS, trainer)
    return _wrapped(backend, template, eos, None, bos)


_BPE_CORPUS = [
    "user: hello there\nassistant: hello you\nuser: and now\nassistant: good bye\n",
    "user\nwhat is it?\nassistant\nit is a cat, and a good one\n",
    "system: be kind\nuser: what is the weather in Paris?\nassistant: sunny\n",
] * 20


def word_tokenizer(
    words: list[str], template: str | None = CHATML, eos: str | None = "<eos>"
) -> PreTrainedTokenizerFast:
    """One token a word, a run of white space or a mark: joined tokens are the text again."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["<unk>", *words]))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+|\w+|[^\w\s]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _wrapped(backend, template, eos, None, False)


def _wrapped(
    backend: Tokenizer, template: str | None, eos: str | None, pad: str | None, bos: bool
) -> PreTrainedTokenizerFast:
    backend.add_special_tokens(SPECIAL)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", backend.token_to_id("<bos>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token=pad, bos_token="<bos>" if bos else None
    )
    tokenizer.chat_template = template
    return tokenizer


def decode(tokenizer: PreTrainedTokenizerFast, ids: Any) -> str:
    return tokenizer.backend_tokenizer.decode(
        [int(token) for token in ids], skip_special_tokens=False
    )


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def config_for(
    root: Path,
    task: str = "text",
    *,
    seq_len: int = 64,
    sources: list[str] | None = None,
    heldout: list[str] | None = None,
    chunk_records: int | None = 10,
    packing: str = "auto",
    documents: int = 3,
    seed: int = 7,
    model: dict[str, Any] | None = None,
    phase: str = "one",
    **data: Any,
) -> Config:
    """A configuration of one phase; sources default to `root/train.jsonl`."""
    settings: dict[str, Any] = {
        "objective": "retrieval" if task == "retrieval" else "generative",
        "task": task,
        "role": "generative",
        "batch_size": 2,
        "seq_len": seq_len,
        "steps": 1,
        "packing": packing,
        "data": {
            "sources": sources or [str(root / "train.jsonl")],
            "heldout": heldout or [],
            **data,
        },
    }
    if task == "retrieval":
        settings["retrieval"] = {"temperature": 0.05, "documents": documents}
    no_model = dict.fromkeys(["path", "config", "tokenizer", "chat_template", "parameters"])
    return load(
        {
            "profile": {"name": "test", "init_from": None, "corpus": None},
            "plan": {"name": "test", "phases": {phase: settings}},
            "model": {"name": "test", **no_model, **(model or {})},
            "optim": {
                "name": "adamw",
                "lr": 1e-3,
                "betas": (0.9, 0.95),
                "eps": 1e-8,
                "weight_decay": 0.0,
                "max_grad_norm": None,
            },
            "schedule": {
                "kind": "constant",
                "scope": "plan",
                "warmup_steps": 0,
                "decay_steps": 0,
                "min_ratio": 0.0,
            },
            "engine": {
                "dtype": "float32",
                "threads": None,
                "micro_batch_tokens": 64,
                "head_chunk_rows": 64,
                "replicate": 1,
                "max_nonfinite_steps": 1,
                "timeout_seconds": 60,
            },
            "budget": {"scale": {"steps": 1.0, "batch_size": 1.0, "seq_len": 1.0}},
            "data": {
                "root": None,
                "chunk_records": chunk_records,
                "chunk_windows": 8,
                "max_record_bytes": 1 << 25,
                "workers": 1,
            },
            "probes": {
                "at_start": False,
                "at_phase_end": False,
                "phase_end_fraction": 1.0,
                "perplexity_windows": None,
                "retrieval_queries": None,
                "generation_records": None,
                "generation_max_tokens": 8,
                "batch_tokens": 64,
            },
            "checks": {"ignore": [], "max_replay_share": 0.3, "max_phase_share": 0.5},
            "audit": {
                "dominant_target_error": 0.05,
                "dominant_target_warning": 0.01,
                "max_question_truncated_share": 0.02,
                "max_abstention_share": 0.25,
                "min_paraphrases": 10,
                "max_paraphrase_ratio": 3.0,
                "max_over_long_share": 0.1,
                "min_reached_share": 0.1,
                "min_trained_share": 0.01,
                "examples": 3,
            },
            "checkpoint": {"every_steps": 10, "keep_last": 1},
            "tracking": {"enabled": False, "uri": None, "experiment": "test", "flush_steps": 1},
            "run": {"dir": str(root / "run")},
            "store": {"dir": str(root / "store")},
            "cache": {"dir": str(root / "cache")},
            "seed": seed,
            "dry_run": False,
            "output": "table",
        }
    )
