"""A small configuration, held-out files, and an evaluator whose answers are known beforehand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from curriculum.config import Config, load

# fmt: off
WORDS = [
    "<pad>", "<unk>", "<eos>", "<start>", "<end>", "user", "assistant", "system", "Question", ":",
    "?", ".", "Who", "is", "the", "king", "of", "Orr", "Ann", "Bob", "[", "]", "1", "2", "The",
    "passages", "do", "not", "say", "It", "stated", "Reasons", "first",
]
# fmt: on
TEMPLATE = (
    "{% for m in messages %}{{ '<start>' + m['role'] + '\\n' + m['content'] + '<end>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer with a ChatML-like template."""
    words = {word: i for i, word in enumerate([*WORDS, "\n"])}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]|\n"), "removed", invert=True)
    core.decoder = decoders.Sequence([decoders.WordPiece(prefix="##"), decoders.Fuse()])
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        additional_special_tokens=["<start>", "<end>"],
        chat_template=TEMPLATE,
        **special,
    )


def phase_values(objective: str, task: str, heldout: list[str], **changes: Any) -> dict[str, Any]:
    data = {"sources": ["unused.jsonl"], "heldout": heldout, **changes.pop("data", {})}
    values = {"role": "generative", "batch_size": 2, "seq_len": 32, "steps": 3}
    return {"objective": objective, "task": task, "data": data, **values, **changes}


def config_values(tmp_path: Path, phases: dict[str, Any], **probes: Any) -> dict[str, Any]:
    model = {"max_position_embeddings": 64}
    limits = {
        "at_start": True,
        "at_phase_end": True,
        "phase_end_fraction": 0.5,
        "perplexity_windows": None,
    }
    limits |= {"retrieval_queries": None, "generation_records": None}
    limits |= {"generation_max_tokens": 8, "batch_tokens": 256, **probes}
    adamw = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}
    engine = {"dtype": "float32", "threads": 1, "micro_batch_tokens": 64, "head_chunk_rows": 8}
    schedule = {"kind": "constant", "scope": "plan", "warmup_steps": 0, "decay_steps": 0}
    return {
        "profile": {"name": "test", "init_from": None, "corpus": None},
        "plan": {"name": "small", "phases": phases},
        "model": {"name": "none", "path": None, "config": model, "tokenizer": str(tmp_path / "tok"),
                  "chat_template": None, "parameters": None},
        "optim": adamw | {"max_grad_norm": 1.0},
        "schedule": schedule | {"min_ratio": 0.0},
        "engine": engine | {"replicate": 1, "max_nonfinite_steps": 3, "timeout_seconds": 60},
        "budget": {"scale": {"steps": 1.0, "batch_size": 1.0, "seq_len": 1.0}},
        "data": {
            "root": str(tmp_path),
            "chunk_records": 64,
            "chunk_windows": 8,
            "max_record_bytes": 1 << 25,
            "workers": 1,
        },
        "probes": limits,
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
        "checkpoint": {"every_steps": 5, "keep_last": 2},
        "tracking": {"enabled": False, "uri": None, "experiment": "none", "flush_steps": 10},
        "run": {"dir": str(tmp_path / "run")},
        "store": {"dir": str(tmp_path / "store")},
        "cache": {"dir": str(tmp_path / "cache")},
        "seed": 1, "dry_run": False, "output": "table",
    }  # fmt: skip


@pytest.fixture
def phase() -> Callable[..., dict[str, Any]]:
    """`phase(objective, task, heldout patterns, **changes)`: the values of one phase."""
    return phase_values


@pytest.fixture
def values(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`values(phases, **probe limits)`: plain configuration values."""
    return lambda phases, **probes: config_values(tmp_path, phases, **probes)


@pytest.fixture
def config(values: Callable[..., dict[str, Any]]) -> Callable[..., Config]:
    """`config(phases, **probe limits)`: the typed configuration."""
    return lambda phases, **probes: load(values(phases, **probes))


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """`write_jsonl(name, records)`: a file under `tmp_path`, its path as text."""

    def write(name: str, records: list[dict[str, Any]]) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return str(path)

    return write


class FakeEvaluator:
    """Answers that a test sets. A window's loss per trained token is its first input id."""

    rank = 0

    def __init__(self) -> None:
        self.replies: list[list[int]] = []
        self.embeddings: Callable[[Any], np.ndarray] | None = None
        self.prompts: list[list[int]] = []
        self.stop_ids: set[int] = set()
        self.calls = 0

    def losses(self, windows: Any) -> tuple[float, float]:
        self.calls += 1
        sums = [(w.input_ids[0] * w.loss_weights.sum(), w.loss_weights.sum()) for w in windows]
        return float(sum(s for s, _ in sums)), float(sum(w for _, w in sums))

    def embed(self, texts: Any, layer: int = -1, pooling: str = "last") -> np.ndarray:
        self.calls += 1
        assert self.embeddings is not None
        return self.embeddings(texts)

    def generate(self, prompts: Any, max_new_tokens: int, stop_ids: Any) -> list[list[int]]:
        self.calls += 1
        self.prompts, self.stop_ids = [list(p) for p in prompts], set(stop_ids)
        assert len(self.replies) == len(prompts)
        return [reply[:max_new_tokens] for reply in self.replies]


@pytest.fixture
def evaluator() -> FakeEvaluator:
    return FakeEvaluator()
