"""A plan of three short phases on a very small model, laid out as a user would: for runs that are
killed many times."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

STEPS = {"talk": 5, "pairs": 4, "prose": 6}
TOTAL = sum(STEPS.values())
INTERVAL = 2
ENDS = [sum(list(STEPS.values())[: n + 1]) for n in range(len(STEPS))]
# the steps after which a save is due: every INTERVAL-th of a phase, and its last one
DUE = sorted(
    {
        end - steps + n
        for end, steps in zip(ENDS, STEPS.values(), strict=True)
        for n in (*range(INTERVAL, steps, INTERVAL), steps)
    }
)
RUN = Path("run")

_WORDS = [f"w{n}" for n in range(60)]
_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [end] {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
_PLAN = """
name: faults
init_from: scratch
phases:
  talk: {objective: generative, task: messages, role: foundation, steps: 5, batch_size: 4,
    seq_len: 32, data: {sources: ["data/talk.jsonl"], heldout: ["data/talk_heldout.jsonl"]}}
  pairs: {objective: retrieval, task: retrieval, role: generative, steps: 4, batch_size: 4,
    seq_len: 16, retrieval: {temperature: 0.1, documents: 2}, data: {sources: ["data/pairs.jsonl"]}}
  prose: {objective: causal, task: text, role: generative, steps: 6, batch_size: 2, seq_len: 24,
    data: {sources: ["data/prose.jsonl"], heldout: ["data/prose_heldout.jsonl"]}}
"""
_MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 80,
}


def command(*overrides: str) -> list[str]:
    """Arguments of a run of the plan, from the directory where it was laid out."""
    return [
        *("run", "+plan=faults", "profile=rehearsal", "--config-dir", ".", f"run.dir={RUN}"),
        *("store.dir=store", "cache.dir=cache", "plan.init_from=scratch", "tracking=none"),
        *(f"model.config.{key}={value}" for key, value in _MODEL.items()),
        *("model=demo", "model.parameters=null", "model.tokenizer=tokenizer"),
        *("budget.scale.steps=1.0", "optim.lr=1e-2", f"checkpoint.every_steps={INTERVAL}"),
        *("data.workers=1", "data.chunk_records=16", "engine.threads=1", "engine.replicate=1"),
        *("probes.at_start=false", "probes.at_phase_end=true", "probes.generation_max_tokens=4"),
        *("probes.perplexity_windows=2", "probes.generation_records=2"),
        *("checks.ignore=[data/dominant-target,plan/phase-share]", *overrides),
    ]


def lay_out(root: Path) -> Path:
    """Data, tokenizer and plan below `root`."""
    (root / "data").mkdir(parents=True)
    for name, rows in _records().items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (root / "data" / f"{name}.jsonl").write_text(lines)
    marks = ["[unk]", "[end]", "[user]", "[assistant]"]
    core = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(marks + _WORDS)}, unk_token="[unk]")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="[end]", unk_token="[unk]")
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(str(root / "tokenizer"))
    (root / "plan").mkdir()
    (root / "plan" / "faults.yaml").write_text(_PLAN)
    return root


def rows(root: Path) -> list[dict[str, Any]]:
    """Whole rows of `metrics.jsonl`, without the wall time."""
    path = root / RUN / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def committed(root: Path) -> list[int]:
    """Steps that a checkpoint with a marker holds, in order."""
    markers = (root / RUN / "checkpoints").glob("step_*/COMMITTED")
    return sorted(int(path.parent.name.removeprefix("step_")) for path in markers)


def weights(root: Path) -> str:
    data = (root / RUN / "final" / "model.safetensors").read_bytes()
    return hashlib.sha256(data).hexdigest()


def _text(seed: int, count: int) -> str:
    return " ".join(_WORDS[(seed * 7 + i * (1 + seed % 5)) % len(_WORDS)] for i in range(count))


def _records() -> dict[str, list[dict[str, Any]]]:
    def talk(n: int) -> dict[str, Any]:
        said = [("user", _text(n, 3)), ("assistant", _text(n + 50, 4))]
        return {"messages": [{"role": role, "content": text} for role, text in said]}

    return {
        "talk": [talk(n) for n in range(80)],
        "talk_heldout": [talk(n) for n in range(200, 206)],
        "pairs": [
            {
                "query": _text(n, 2),
                "positive": _text(n + 20, 5),
                "negatives": [_text(n + 90, 4)],
            }
            for n in range(40)
        ],
        "prose": [{"text": _text(n, 9 if n % 2 else 12)} for n in range(40)],
        "prose_heldout": [{"text": _text(n, 11)} for n in range(300, 306)],
    }
