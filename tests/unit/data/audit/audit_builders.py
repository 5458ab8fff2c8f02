"""Small sets and what the audit says of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from data_builders import byte_tokenizer, config_for, write_jsonl

from curriculum.config import Config
from curriculum.data.audit import audit
from curriculum.data.windows import prepare
from curriculum.finding import Finding

Row = dict[str, Any]


def chat(user: str, assistant: str, **extra: Any) -> Row:
    turns = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return {"messages": turns, **extra}


def qa(number: int, answer: str | None = None, **extra: Any) -> Row:
    """A record like no other, whose answer stands in its passage."""
    return {
        "question": f"Where does river {number} rise?",
        "answer": answer or f"In hills {number}",
        "passages": [f"River {number} is long. It rises in hills {number}, they say."],
        **extra,
    }


def found(
    root: Path,
    task: str,
    rows: list[Row],
    *,
    prepared: bool = False,
    steps: int = 1,
    **options: Any,
) -> dict[str, Finding]:
    """Findings by code. `prepared`: with the windows that `steps` steps of two need."""
    write_jsonl(root / "train.jsonl", rows)
    config = config_of(root, task, steps, **options)
    windows = {}
    if prepared:
        windows["one"] = prepare(config, "one", "train", byte_tokenizer(), 2 * steps)
    findings = audit(config, windows)
    assert len({finding.code for finding in findings}) == len(findings)
    return {finding.code: finding for finding in findings}


def config_of(root: Path, task: str, steps: int = 1, **options: Any) -> Config:
    config = config_for(root, task, **options)
    phase = replace(config.plan.phases["one"], steps=steps)
    return replace(config, plan=replace(config.plan, phases={"one": phase}))
