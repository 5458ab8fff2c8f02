"""Configurations written out by hand, without `conf/`."""

from typing import Any

from curriculum.config import Config, load

# name, role, objective, task, steps, batch_size, seq_len, lr_scale: the corrective plan's table.
CORRECTIVE = [
    ("rag_qa", "generative", "generative", "qa", 1800, 32, 2048, 1.0),
    ("retrieval_university", "replay", "retrieval", "retrieval", 150, 16, 768, 0.5),
    ("instruction", "generative", "generative", "instruction", 1200, 32, 2048, 1.0),
    ("causal_foundations", "replay", "causal", "text", 400, 64, 512, 0.5),
    ("summarization", "generative", "generative", "summarization", 800, 32, 4096, 1.0),
    ("retrieval_advanced", "replay", "retrieval", "retrieval", 150, 16, 1024, 0.5),
    ("causal_university", "replay", "causal", "text", 400, 16, 2048, 0.5),
    ("qa_mixture", "generative", "generative", "qa", 600, 32, 4096, 1.0),
    ("retrieval_school", "replay", "retrieval", "retrieval", 150, 32, 512, 0.5),
    ("planning", "generative", "generative", "planning", 900, 32, 1024, 1.0),
]


def phase(
    role: str = "generative",
    objective: str = "generative",
    task: str = "qa",
    steps: int | None = 10,
    batch_size: int = 2,
    seq_len: int = 8,
    **more: Any,
) -> dict[str, Any]:
    """Values of one phase."""
    values = {
        "objective": objective,
        "task": task,
        "role": role,
        "steps": steps,
        "batch_size": batch_size,
        "seq_len": seq_len,
        "data": {"sources": ["/data/train.jsonl"]},
        **more,
    }
    if objective == "retrieval":
        values.setdefault("retrieval", {"temperature": 0.05, "documents": 3})
    return values


def values(phases: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Values of a whole configuration; `more` replaces nodes by name."""
    base: dict[str, Any] = {
        "profile": {"name": "test", "init_from": None, "corpus": None},
        "plan": {"name": "p", "init_from": "scratch", "gates": [], "phases": phases},
        "model": {
            "name": "m",
            "path": None,
            "config": None,
            "tokenizer": None,
            "chat_template": None,
            "parameters": None,
        },
        "optim": {
            "name": "adamw",
            "lr": 1.0,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
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
            "head_chunk_rows": 8,
            "replicate": 1,
            "max_nonfinite_steps": 1,
            "timeout_seconds": 10,
        },
        "budget": {"scale": {"steps": 1.0, "batch_size": 1.0, "seq_len": 1.0}},
        "data": {
            "root": None,
            "chunk_records": 8,
            "chunk_windows": 8,
            "max_record_bytes": 1 << 25,
            "workers": 1,
        },
        "probes": {
            "at_start": True,
            "at_phase_end": True,
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
        "checkpoint": {"every_steps": 100, "keep_last": 1},
        "tracking": {"enabled": False, "uri": None, "experiment": "e", "flush_steps": 1},
        "run": {"dir": "/run"},
        "store": {"dir": "/store"},
        "cache": {"dir": "/cache"},
        "seed": 0,
        "dry_run": True,
        "output": "table",
    }
    return {**base, **more}


def config(phases: dict[str, dict[str, Any]], init_from: str = "scratch", **more: Any) -> Config:
    """A typed configuration of these phases."""
    tree = values(phases, **more)
    tree["plan"]["init_from"] = init_from
    return load(tree)


def schedule(kind: str, warmup: int, decay: int, low: float, scope: str = "plan") -> dict[str, Any]:
    """Values of a schedule."""
    return {
        "kind": kind,
        "scope": scope,
        "warmup_steps": warmup,
        "decay_steps": decay,
        "min_ratio": low,
    }


def corrective(**more: Any) -> Config:
    """The ten phases of the published corrective plan."""
    phases = {
        name: phase(role, objective, task, steps, batch, length, lr_scale=scale)
        for name, role, objective, task, steps, batch, length, scale in CORRECTIVE
    }
    return config(phases, init_from="/checkpoint", **more)
