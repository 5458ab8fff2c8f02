"""Equal keys mean equal weights: what must change a key, and what must not."""

from collections.abc import Sequence
from typing import Any

import pytest
from plan_builders import config, phase

from curriculum.compose import compose
from curriculum.plan.graph import order
from curriculum.plan.keys import Content, phase_records
from curriculum.plan.scale import scaled


def keys(
    overrides: Sequence[str] = (), origin: str = "o", tokenizer: str = "t", data: str = ""
) -> list[str]:
    config = scaled(compose(["+plan=corrective", *overrides]))
    names = order(config.plan)
    content = {n: Content(f"{n}{data if n == 'instruction' else ''}") for n in names}
    found = phase_records(config, origin, content, Content(tokenizer))
    return [record.key for record in found.values()]


def changed(found: list[str]) -> list[int]:
    """Numbers, from 1, of the phases whose key differs from the plan's as shipped."""
    return [n for n, (a, b) in enumerate(zip(keys(), found, strict=True), 1) if a != b]


@pytest.mark.parametrize(
    "override",
    [
        "engine.threads=1",
        "engine.micro_batch_tokens=64",
        "engine.world_size=64",
        "budget.utilisation=0.3",
        "plan.phases.rag_qa.micro_batch_size=1",
        "run.dir=elsewhere",
        "store.dir=elsewhere",
        "probes.at_start=false",
        "tracking.enabled=false",
        "checkpoint.every_steps=7",
        "checks.max_replay_share=0.9",
        "plan.phases.qa_mixture.data.heldout=[]",
        "plan.phases.qa_mixture.role=replay",
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
        ("model.embedding_dim=64", 1),
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


def branch_keys(weights=None, after=("b", "c"), **edits) -> dict[str, str]:
    """Keys of a -> (b, c) -> d, their average."""
    merged: dict[str, Any] = {"objective": "merge", "after": list(after)}
    if weights:
        merged["merge"] = {"weights": weights}
    phases = {
        "a": phase(**edits.get("a", {})),
        "b": phase(after="a", **edits.get("b", {})),
        "c": phase(after="a", **edits.get("c", {})),
        "d": merged,
    }
    content = {name: Content(name) for name in "abc"}
    found = phase_records(config(phases), "o", content, Content("t"))
    return {name: record.key for name, record in found.items()}


def test_an_edited_branch_leaves_the_other_one() -> None:
    plain, edited = branch_keys(), branch_keys(b={"lr_scale": 0.5})
    assert [name for name in plain if plain[name] != edited[name]] == ["b", "d"]


def test_a_merge_is_known_by_its_parents_and_their_weights() -> None:
    plain = branch_keys()["d"]
    assert branch_keys({"b": 1, "c": 1})["d"] == plain  # what counts alike is uniform
    assert branch_keys({"b": 2, "c": 6})["d"] == branch_keys({"b": 1, "c": 3})["d"] != plain
    assert branch_keys({"b": 3, "c": 1})["d"] != branch_keys({"b": 1, "c": 3})["d"]
