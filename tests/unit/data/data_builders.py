"""Small tokenizers, templates and configurations for the tests of the data path."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
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
    chunk_records: int = 10,
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
            "data": {"root": None, "chunk_records": chunk_records},
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
