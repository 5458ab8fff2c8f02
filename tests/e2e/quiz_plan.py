"""A plan that ends on a choice phase, laid out as a user would, with a choice set to evaluate."""

import json
from pathlib import Path
from typing import Any

import fault_plan
import numpy as np

from curriculum.data.packed_choice import Bin, write_eval

STEPS = {"talk": 3, "ask": 5}
TOTAL = sum(STEPS.values())
VOCABULARY = 60
ROW_IDS = ([5, 0], [3], [1, 8, 2], [7, 4], [6])

_PLAN = """
name: quiz
init_from: scratch
phases:
  talk: {objective: generative, task: messages, role: foundation, steps: 3, batch_size: 4,
    seq_len: 32, data: {sources: ["data/talk.jsonl"], heldout: ["data/talk_heldout.jsonl"]}}
  ask: {objective: choice, task: choice, role: calibration, batch_size: 4, seq_len: 32,
    data: {sources: ["data/ask.jsonl"], heldout: ["data/ask_heldout.jsonl"]}}
"""


def command(*overrides: str) -> list[str]:
    """Arguments of a run of the plan, from the directory where it was laid out."""
    words = fault_plan.command("probes.at_phase_end=false", *overrides)
    return [word.replace("+plan=faults", "+plan=quiz") for word in words]


def lay_out(root: Path) -> Path:
    """Data, tokenizer and plan below `root`, and `sets/quiz`."""
    fault_plan.lay_out(root)
    (root / "plan" / "quiz.yaml").write_text(_PLAN)
    # a prompt of 4 words, 3 marks and the answer: 4 records a bin of 32 tokens, 20 bins
    for name, first, count in (("ask", 0, 80), ("ask_heldout", 300, 6)):
        rows = (json.dumps(_asked(n)) + "\n" for n in range(first, first + count))
        (root / "data" / f"{name}.jsonl").write_text("".join(rows))
    bins, _, targets = eval_bins()
    write_eval(
        root / "sets" / "quiz", bins, name="quiz", seq_len=32, targets=targets, bins_per_file=2
    )
    return root


def _asked(n: int) -> dict[str, Any]:
    """Two to four choices; an answer, or belief of which some has none; every fifth masked."""
    words = [f"w{(n * 7 + i * (1 + n % 5)) % VOCABULARY}" for i in range(4)]
    choices = [f"w{(n + 11 * i) % VOCABULARY}" for i in range(2 + n % 3)]
    belief = [0.75, 0.25, 0.0, 0.0][: len(choices)]
    expected = {"answer": n % 2} if n % 3 else {"target_probs": belief}
    return {"prompt": " ".join(words), "choices": choices, "weight": float(n % 5), **expected}


def eval_bins() -> tuple[list[Bin], dict[int, tuple[list[int], list[int]]], list[np.ndarray]]:
    """Bins in which row ids stand in no order; by row id the prompt and the candidates; targets."""
    rng = np.random.default_rng(4)
    bins, told = [], {}
    for ids in ROW_IDS:
        prompts = [rng.integers(4, VOCABULARY, int(rng.integers(2, 9))).tolist() for _ in ids]
        choices = [rng.choice(VOCABULARY, int(rng.integers(2, 6)), replace=False) for _ in ids]
        for number, prompt, some in zip(ids, prompts, choices, strict=True):
            told[number] = prompt, some.tolist()
        sizes = np.array([len(prompt) for prompt in prompts], np.int32)
        bins.append(
            Bin(
                input_ids=np.array([t for prompt in prompts for t in prompt], np.int32),
                seq_lens=sizes,
                positions=np.cumsum(sizes, dtype=np.int32) - np.int32(1),
                choice_ids=np.concatenate(choices).astype(np.int32),
                choice_counts=np.array([len(some) for some in choices], np.int32),
                target_probs=np.zeros(0, np.float32),
                weights=np.zeros(0, np.float32),
                mix_weights=np.zeros((len(ids), 0), np.float32),
                row_ids=np.array(ids, np.int64),
            )
        )
    targets = [
        rng.dirichlet(np.ones(len(told[number][1]))).astype(np.float32) for number in range(9)
    ]
    return bins, told, targets
