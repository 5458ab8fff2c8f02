"""Equal keys mean equal weights: what must change a key, and what must not."""

from collections.abc import Sequence

import pytest

from curriculum.compose import compose
from curriculum.plan.graph import order
from curriculum.plan.keys import phase_keys
from curriculum.plan.scale import scaled


def keys(
    overrides: Sequence[str] = (), origin: str = "o", tokenizer: str = "t", data: str = ""
) -> list[str]:
    config = scaled(compose(["+plan=corrective", *overrides]))
    names = order(config.plan)
    content = {name: f"{name}{data if name == 'instruction' else ''}" for name in names}
    return list(phase_keys(config, origin, content, tokenizer).values())


def changed(found: list[str]) -> list[int]:
    """Numbers, from 1, of the phases whose key differs from the plan's as shipped."""
    return [n for n, (a, b) in enumerate(zip(keys(), found, strict=True), 1) if a != b]


@pytest.mark.parametrize(
    "override",
    [
        "engine.threads=1",
        "engine.micro_batch_tokens=64",
        "plan.phases.rag_qa.micro_batch_size=1",
        "run.dir=elsewhere",
        "store.dir=elsewhere",
        "probes.at_start=false",
        "tracking.enabled=false",
        "checkpoint.every_steps=7",
        "checks.max_replay_share=0.9",
        "plan.phases.qa_mixture.data.heldout=[]",
    ],
)
def test_layout_and_watching_are_no_part_of_a_key(override: str) -> None:
    assert changed(keys([override])) == []


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("seed=5", 1),
        ("optim.lr=0.001", 1),
        ("optim.weight_decay=0.2", 1),
        ("engine.dtype=bfloat16", 1),
        ("schedule.warmup_steps=300", 1),
        ("plan.phases.retrieval_university.retrieval.temperature=0.07", 2),
        ("plan.phases.qa_mixture.lr_scale=0.9", 8),
        ("plan.phases.qa_mixture.optimizer_state=reset", 8),
        ("plan.phases.retrieval_school.batch_size=64", 9),
        # decay lies inside the last phase: its length changes no earlier rate
        ("plan.phases.planning.steps=1200", 10),
        ("schedule.decay_steps=300", 10),
    ],
)
def test_a_change_counts_from_where_it_acts(override: str, first: int) -> None:
    assert changed(keys([override])) == list(range(first, 11))


def test_origin_tokenizer_and_data_count() -> None:
    assert changed(keys(origin="other")) == list(range(1, 11))
    assert changed(keys(tokenizer="other")) == list(range(1, 11))
    assert changed(keys(data="other")) == list(range(3, 11))
