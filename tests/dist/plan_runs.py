"""Whole plans of three small phases, run by the program's own loop and interrupted at will.

A run is watched from outside: the rows that it writes, the records of every step, and the moments
before every step.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import fsum
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast

from curriculum.checked import CheckedPlan, check
from curriculum.compose import compose
from curriculum.engine.distributed import World
from curriculum.engine.saves import Saves
from curriculum.engine.step import Engine
from curriculum.faults.signals import StopRequest
from curriculum.tracking.journal import Journal
from curriculum.training.run import PlanRun

WORDS = [f"w{n}" for n in range(60)]
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} [end] {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
# three objectives, three schedules; moments are carried into the second phase, not into the third
PLAN = """
name: legs
init_from: scratch
phases:
  words:
    {objective: causal, task: text, role: foundation, epochs: 3, batch_size: 2, seq_len: 16,
     schedule: {kind: cosine, scope: phase, warmup_steps: 4, decay_steps: 0, min_ratio: 0.1},
     data: {sources: ["DATA/text.jsonl"]}}
  turns:
    {objective: generative, task: messages, role: foundation, epochs: 3, batch_size: 2, seq_len: 32,
     schedule: {kind: constant, scope: phase, warmup_steps: 0, decay_steps: 0, min_ratio: 0.0},
     packing: none, data: {sources: ["DATA/messages.jsonl"]}}
  pairs:
    {objective: retrieval, task: retrieval, role: foundation, epochs: 3, batch_size: 2, seq_len: 16,
     schedule: {kind: wsd, scope: phase, warmup_steps: 3, decay_steps: 5, min_ratio: 0.0},
     optimizer_state: reset, retrieval: {temperature: 0.1, documents: 2},
     data: {sources: ["DATA/pairs.jsonl"]}}
"""
MODEL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 80,
}


def words(seed: int, count: int) -> str:
    return " ".join(WORDS[(seed * 7 + i * (1 + seed % 5)) % len(WORDS)] for i in range(count))


def records() -> dict[str, list[dict[str, Any]]]:
    """Six conversations and pairs; twelve texts, two a window, which they never fill exactly."""
    return {
        "text": [{"text": words(n, 6 if n % 2 else 8)} for n in range(12)],
        "messages": [
            {
                "messages": [
                    {"role": "user", "content": words(n, 3)},
                    {"role": "assistant", "content": words(n + 50, 4)},
                ]
            }
            for n in range(6)
        ],
        "pairs": [
            {
                "query": words(n, 2),
                "positive": words(n + 20, 5),
                "negatives": [words(n + 90, 4)],
            }
            for n in range(6)
        ],
    }


def lay_out(root: Path, made: dict[str, list[dict[str, Any]]] | None = None) -> None:
    """Data, tokenizer and plan below `root`."""
    data = root / "data"
    data.mkdir(parents=True)
    for name, rows in (made or records()).items():
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    marks = ["[unk]", "[end]", "[user]", "[assistant]"]
    core = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(marks + WORDS)}, unk_token="[unk]")
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="[end]", unk_token="[unk]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(root / "tokenizer"))
    (root / "plan").mkdir()
    (root / "plan" / "legs.yaml").write_text(PLAN.replace("DATA", str(data)))


def arguments(root: Path, run: str, *overrides: str) -> list[str]:
    """The plan, to run in `root/RUN` with a store of its own, saved every third step."""
    return [
        *("+plan=legs", "profile=rehearsal", "model=demo", "tracking=none"),
        *(f"model.config.{key}={value}" for key, value in MODEL.items()),
        "+model.config.attention_dropout=0.3",
        *("model.parameters=null", f"model.tokenizer={root / 'tokenizer'}"),
        *("budget.scale.steps=1.0", "plan.init_from=scratch", "optim.lr=1e-2"),
        *("data.chunk_windows=8", "data.workers=1", "engine.threads=1"),
        *("engine.micro_batch_tokens=64", "probes.at_start=false", "probes.at_phase_end=false"),
        "checks.ignore=[data/dominant-target]",
        *(f"run.dir={root / run}", f"store.dir={root / run}-store", f"cache.dir={root}/cache"),
        "checkpoint.every_steps=3",
        *overrides,
    ]


def plan(root: Path, run: str, *overrides: str) -> CheckedPlan:
    return check(compose(arguments(root, run, *overrides), config_dir=str(root)))


class Killed(Exception):
    """Stands for the end of the process."""


class Watch:
    """What a run did, step by step, and where to end it."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at
        self.steps: list[int] = []
        self.records: list[list[list[int]]] = []
        self.moments: list[str] = []
        self.own_losses: list[str] = []
        self.saves: list[int] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        micro_batches, step, wrote = Engine.micro_batches, Engine.step, Journal.step
        save, watch = Saves.start, self

        def see_records(engine: Engine, windows: Any, *rest: Any) -> Any:
            watch.records.append([window.record_ids.tolist() for window in windows])
            return micro_batches(engine, windows, *rest)

        def see_moments(engine: Engine, *rest: Any, **named: Any) -> Any:
            states = engine.optimizer.state.values()
            sums = [whole(state["exp_avg"]).double().abs().sum().item() for state in states]
            watch.moments.append(fsum(sums).hex() if sums else "none")  # exact in any order
            return step(engine, *rest, **named)

        def end(journal: Journal, row: Any, *rest: Any) -> None:
            wrote(journal, row, *rest)
            watch.steps.append(row.step)
            if row.step == watch.kill_at:
                raise Killed

        def see_save(saves: Saves, number: int, *rest: Any, **named: Any) -> None:
            watch.saves.append(number)
            save(saves, number, *rest, **named)

        Engine.micro_batches, Engine.step = see_records, see_moments  # type: ignore[method-assign]
        Journal.step, Saves.start = end, see_save  # type: ignore[method-assign]
        try:
            yield
        finally:
            Engine.micro_batches, Engine.step = micro_batches, step  # type: ignore[method-assign]
            Journal.step, Saves.start = wrote, save  # type: ignore[method-assign]

    def run(self, checked: CheckedPlan, ranks: World) -> bool:
        """True if the plan is finished, False if it was ended before."""
        with self.watching():
            try:
                run = PlanRun(checked, ranks, StopRequest())
                run.engine.model.register_forward_hook(
                    lambda module, given, out: self.own_losses.append(out[0].item().hex())
                )
                return run.run()
            except Killed:
                return False
            finally:
                ranks.barrier()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def rows(checked: CheckedPlan) -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl` without what the clock decides."""
    lines = (checked.directory / "metrics.jsonl").read_text().splitlines()
    keep = ("step", "phase", "phase_step", "loss", "lr", "grad_norm", "forward_tokens")
    return [{key: json.loads(line)[key] for key in keep} for line in lines]


def final_weights(checked: CheckedPlan) -> str:
    import hashlib

    data = (checked.directory / "final" / "model.safetensors").read_bytes()
    return hashlib.sha256(data).hexdigest()
