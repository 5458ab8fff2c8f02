"""Plans of a few steps on a model of a few thousand weights, run within the tests' own process.

A run takes a second or two. `run_broken_off` ends one in the middle of a step."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from curriculum.cli import main

WORDS = ("amber", "bells", "carry", "dusty", "eaves", "grain", "hills", "jars", "kept", "low")


def phase(after: str | None = None, steps: int = 3, **more: Any) -> dict[str, Any]:
    """A causal phase over `data/<name>.jsonl`, which `write` fills in."""
    values = {"objective": "causal", "task": "text", "role": "foundation", "steps": steps}
    return {**values, "batch_size": 2, "seq_len": 16, "after": after, **more}


def diamond() -> dict[str, dict[str, Any]]:
    """a -> (b, c) -> d, their weighted average, -> e."""
    return {
        "a": phase(),
        "b": phase("a", lr_scale=0.5),
        "c": phase("a", steps=4),
        "d": {"objective": "merge", "after": ["b", "c"], "merge": {"weights": {"b": 3, "c": 1}}},
        "e": phase("d", steps=2),
    }


def write(root: Path, phases: Mapping[str, Mapping[str, Any]], name: str = "small") -> None:
    """`conf/` for `--config-dir`, data of every phase, a tokenizer: everything that `run` needs."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = {}
    for number, (phase_name, values) in enumerate(phases.items()):
        made[phase_name] = dict(values)
        if values["objective"] == "merge":
            continue
        file = root / "data" / f"{phase_name}.jsonl"
        made[phase_name].setdefault("data", {}).setdefault("sources", [str(file)])
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            texts = [
                " ".join(WORDS[(n * 5 + i * (1 + n % 3) + number) % len(WORDS)] for i in range(9))
                for n in range(60)
            ]
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    plan = {"name": name, "init_from": "scratch", "gates": [], "phases": made}
    save(root / "conf" / "plan" / f"{name}.yaml", plan)
    save(root / "conf" / "profile" / "small.yaml", PROFILE, head="# @package _global_\n")
    vocabulary = {word: i for i, word in enumerate(["<eos>", "<unk>", *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}"
    tokenizer.save_pretrained(str(root / "tokenizer"))


PROFILE = {
    "profile": {"name": "small", "init_from": None, "corpus": None},
    "model": {
        "name": "small",
        "tokenizer": "tokenizer",
        "parameters": None,
        "config": {
            "model_type": "qwen3",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 32,
            "vocab_size": 17,  # uneven over two ranks
            "max_position_embeddings": 32,
            "tie_word_embeddings": True,
        },
    },
    "data": {"workers": 1},
    "checks": {"ignore": ["data/few-reached"]},
    "schedule": {"warmup_steps": 5, "decay_steps": 2},
    "optim": {"lr": 1e-2},
    "engine": {"threads": 1, "micro_batch_tokens": 32},
    "checkpoint": {"every_steps": 2},
    "probes": {"at_start": False, "at_phase_end": False},
}


def save(path: Path, values: Mapping[str, Any], head: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + yaml.safe_dump(dict(values), sort_keys=False))


def run(root: Path, *overrides: str, plan: str = "small") -> int:
    """`python -m curriculum run +plan=PLAN profile=small ...` from `root`; the exit code."""
    return command(root, "run", f"+plan={plan}", "profile=small", "tracking=none", *overrides)


def command(root: Path, *arguments: str) -> int:
    """`python -m curriculum ARGUMENTS` from `root`, in this process; the exit code."""
    here = os.getcwd()
    os.chdir(root)
    try:
        return main([*arguments, "--config-dir", str(root / "conf")])
    finally:
        os.chdir(here)


class Killed(BaseException):
    """What nothing in the program catches."""


def run_broken_off(root: Path, monkeypatch: Any, step: int, *overrides: str) -> None:
    """The same, ended when its `step`-th step is computed and nothing of it is noted."""
    from curriculum.engine.step import Engine

    real, taken = Engine.step, [0]

    def counted(*args: Any, **more: Any) -> Any:
        result = real(*args, **more)
        taken[0] += 1
        if taken[0] == step:
            raise Killed
        return result

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Engine, "step", counted)
        run(root, *overrides)


def watch_steps(monkeypatch: Any, seen: Callable[[Any], None]) -> None:
    """Call `seen` with the engine before every step."""
    from curriculum.engine.step import Engine

    real = Engine.step

    def watched(engine: Any, *args: Any, **more: Any) -> Any:
        seen(engine)
        return real(engine, *args, **more)

    monkeypatch.setattr(Engine, "step", watched)


def rows(root: Path, run_dir: str = "runs/small/small") -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl` without the wall time."""
    lines = (root / run_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def final(root: Path, run_dir: str = "runs/small/small") -> dict[str, torch.Tensor]:
    """The weights that a run ended in."""
    return load_file(root / run_dir / "final" / "model.safetensors")


def stored(root: Path) -> dict[str, Path]:
    """Finished phases in the store by name; names are unique in these tests."""
    found = [p for p in (root / ".curriculum" / "store").iterdir() if (p / "COMMITTED").is_file()]
    return {json.loads((p / "meta.json").read_text())["phase"]: p for p in found}


def weights(directory: Path) -> dict[str, torch.Tensor]:
    """The model's tensors of a checkpoint, read by torch alone."""
    return tensors(directory, "model.")


def tensors(directory: Path, prefix: str) -> dict[str, torch.Tensor]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader

    reader = FileSystemReader(directory / "state")
    found = reader.read_metadata().state_dict_metadata
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in found.items()
        if key.startswith(prefix)
    }
    dcp.load(state, storage_reader=reader)
    return {key.removeprefix(prefix): tensor for key, tensor in state.items()}
