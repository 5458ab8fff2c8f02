"""The schema: what it refuses, and how it says so."""

import glob
from copy import deepcopy
from dataclasses import asdict
from functools import lru_cache

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from curriculum.compose import compose, other_plan
from curriculum.config import UNKNOWN_ROOT, load
from curriculum.errors import UserError
from curriculum.plan.scale import scaled
from curriculum.search_path import searching

BASE = ["+plan=corrective", "profile=production"]


@lru_cache
def production():
    return asdict(compose(BASE))


def message(*overrides):
    """What `load` says of the corrective plan with these values."""
    tree = deepcopy(production())
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        *path, last = override.key_or_group.split(".")
        node = tree
        for part in path:
            node = node[part]
        node[last] = override.value()
    with pytest.raises(UserError) as caught:
        load(tree)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.lrr=1", "optim.lrr=1: unknown key; did you mean 'lr'?"),
        ("sede=1", "sede=1: unknown key; did you mean 'seed'?"),
        ("modle=hf", "modle='hf': unknown key; did you mean 'model'?"),
        (
            "plan.phases.rag_qa.stepz=5",
            "plan.phases.rag_qa.stepz=5: unknown key; did you mean 'steps'?",
        ),
        (
            "plan.phases.rag_qa.data.source=x",
            "plan.phases.rag_qa.data.source='x': unknown key; did you mean 'sources'?",
        ),
        (
            "plan.phases.retrieval_school.retrieval.temprature=1",
            "plan.phases.retrieval_school.retrieval.temprature=1: unknown key; "
            "did you mean 'temperature'?",
        ),
        ("budget.scale.step=1", "budget.scale.step=1: unknown key; did you mean 'steps'?"),
        ("checks.zzz=1", "valid keys: ignore, max_replay_share, max_phase_share"),
    ],
)
def test_unknown_keys_name_the_nearest(override, expected):
    assert expected in message(override)


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("plan.phases.rag_qa.steps=0", "plan.phases.rag_qa.steps=0:"),
        ("plan.phases.rag_qa.steps=-3", "plan.phases.rag_qa.steps=-3:"),
        ("plan.phases.rag_qa.steps=1.5", "plan.phases.rag_qa.steps=1.5:"),
        ("plan.phases.rag_qa.steps=many", "plan.phases.rag_qa.steps='many':"),
        ("plan.phases.rag_qa.steps=true", "plan.phases.rag_qa.steps=True:"),
        ("plan.phases.rag_qa.batch_size=null", "plan.phases.rag_qa.batch_size=None:"),
        ("plan.phases.rag_qa.seq_len=0", "plan.phases.rag_qa.seq_len=0:"),
        ("plan.phases.rag_qa.role=reply", "plan.phases.rag_qa.role='reply':"),
        ("plan.phases.rag_qa.task=qaa", "plan.phases.rag_qa.task='qaa':"),
        ("plan.phases.rag_qa.packing=best", "plan.phases.rag_qa.packing='best':"),
        ("plan.phases.rag_qa.lr_scale=0", "plan.phases.rag_qa.lr_scale=0:"),
        ("plan.phases.rag_qa.epochs=0", "plan.phases.rag_qa.epochs=0:"),
        ("plan.phases.rag_qa.data.sources=x.jsonl", "plan.phases.rag_qa.data.sources='x.jsonl':"),
        ("plan.phases.rag_qa.data.on_short=maybe", "plan.phases.rag_qa.data.on_short='maybe':"),
        ("plan.phases.rag_qa=3", "plan.phases.rag_qa=3:"),
        ("plan.phases=3", "plan.phases=3:"),
        ("plan.phases.retrieval_school.retrieval.temperature=0", "retrieval.temperature=0:"),
        ("plan.phases.retrieval_school.retrieval.temperature=-1", "retrieval.temperature=-1:"),
        ("plan.phases.retrieval_school.retrieval.temperature=abc", "retrieval.temperature='abc':"),
        ("plan.phases.retrieval_school.retrieval.temperature=nan", "retrieval.temperature=nan:"),
        ("plan.phases.retrieval_school.retrieval.documents=0", "retrieval.documents=0:"),
        ("optim.lr=nan", "optim.lr=nan:"),
        ("optim.lr=inf", "optim.lr=inf:"),
        ("optim.lr=0", "optim.lr=0:"),
        ("optim.lr=-1e-4", "optim.lr=-0.0001:"),
        ("optim.lr=null", "optim.lr=None:"),
        ("optim.betas=[0.9]", "optim.betas"),
        ("optim.betas=[0.9,2]", "optim.betas.1=2:"),
        ("schedule.warmup_steps=-1", "schedule.warmup_steps=-1:"),
        ("schedule.min_ratio=1.5", "schedule.min_ratio=1.5:"),
        ("schedule.kind=linear", "schedule.kind='linear':"),
        ("budget.scale.steps=0", "budget.scale.steps=0:"),
        ("engine.dtype=fp8", "engine.dtype='fp8':"),
        ("engine.threads=0", "engine.threads=0:"),
        ("seed=-1", "seed=-1:"),
        ("seed=null", "seed=None:"),
        ("output=xml", "output='xml':"),
        ("dry_run=dta", "dry_run='dta':"),
        ("checks.max_replay_share=30", "checks.max_replay_share=30:"),
        ("optim=3", "optim=3"),
    ],
)
def test_bad_values_name_place_value_and_rule(override, place):
    text = message(override)
    assert place in text
    assert "\n" not in text, "one problem, one line"
    assert "union" not in text and "[" not in text.split(":")[0], "no words of the validator"


def test_every_problem_has_its_line():
    text = message("optim.lr=0", "seed=x", "optim.epz=1")
    assert sorted(line.split("=")[0] for line in text.splitlines()) == [
        "optim.epz",
        "optim.lr",
        "seed",
    ]


def test_no_plan_lists_the_plans():
    with pytest.raises(UserError, match="calibrated, corrective, first_sft, foundation"):
        compose(["profile=demo"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optim.lr=???", "optim.lr"),
        ("optim.lr=${nope}", "'nope' not found"),
        ("optim.lrr=1", "optim.lrr=1: unknown key; did you mean 'lr'?"),
        ("sede=1", "sede=1: unknown key; did you mean 'seed'?"),
        ("run=3", "run"),
        ("ckpt=out/epoch=1", """quote the value: 'ckpt="out/epoch=1"'"""),
        ("data.root=/x[1]", """quote the value: 'data.root="/x[1]"'"""),
        ("nonsense", "nonsense: not an override"),
    ],
)
def test_composition_errors_are_one_line(override, expected):
    with pytest.raises(UserError) as caught:
        compose([*BASE, override])
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("plan=correctiv", "plan=correctiv: no such plan; did you mean 'corrective'?"),
        ("profile=dem", "profile=dem: no such profile; did you mean 'demo'?"),
        ("schedule=linear", "there is constant, cosine, wsd"),
    ],
)
def test_unknown_options_name_the_nearest(override, expected):
    first = ["+plan=corrective"] if not override.startswith("plan") else []
    with pytest.raises(UserError) as caught:
        compose([*first, override])
    assert expected in str(caught.value)


def test_two_cards_under_one_name():
    overrides = ["+replay@plan.phases.rag_qa=retrieval_school"]
    with pytest.raises(UserError, match=r"plan\.phases\.rag_qa: two cards under one name"):
        compose(["+plan=corrective", *overrides])


def test_a_card_can_be_added_and_a_phase_removed():
    plan = compose(
        [*BASE, "+replay@plan.phases.more=causal_school", "~plan.phases.instruction"]
    ).plan
    assert list(plan.phases)[-1] == "more" and plan.phases["more"].steps == 1100
    assert "instruction" not in plan.phases


def test_values_that_a_card_leaves_out_can_be_set():
    phase = compose([*BASE, "plan.phases.rag_qa.data.loss_on=all"]).plan.phases["rag_qa"]
    assert phase.data.loss_on == "all"


def test_paths_are_absolute_and_resolve_against_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = compose(
        [
            *BASE,
            "data.root=data",
            "plan.init_from=base",
            "plan.phases.planning.data.sources=[own/*.jsonl,/abs.jsonl]",
        ]
    )
    assert config.run.dir == str(tmp_path / "runs/corrective/production")
    assert config.store.dir == str(tmp_path / ".curriculum/store")
    assert config.cache.dir == str(tmp_path / ".curriculum/cache")
    assert config.data.root == str(tmp_path / "data")
    assert config.plan.init_from == str(tmp_path / "base")
    assert config.plan.phases["rag_qa"].data.sources == [str(tmp_path / "data/rag_qa/train.*")]
    assert config.plan.phases["planning"].data.sources == [
        str(tmp_path / "own/*.jsonl"),
        "/abs.jsonl",
    ]


@pytest.mark.parametrize("name", ["epoch=1-step=10", "a b", "a,b", "données", "it's", "x[1]{2}"])
def test_quoted_paths_of_any_name(name, tmp_path):
    folder = tmp_path / name / "rag_qa"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").touch()
    config = compose(
        [*BASE, f'plan.init_from="{tmp_path / name}"', f'data.root="{tmp_path / name}"']
    )
    assert config.plan.init_from == config.data.root == str(tmp_path / name)
    (pattern,) = config.plan.phases["rag_qa"].data.sources
    assert glob.glob(pattern) == [str(folder / "train.jsonl")]


def test_no_data_root_shows_in_the_patterns():
    config = compose(BASE)
    assert config.data.root is None
    assert config.plan.phases["rag_qa"].data.sources == [f"{UNKNOWN_ROOT}/rag_qa/train.*"]


def test_names_stay_names():
    assert compose(["+plan=foundation"]).plan.init_from == "scratch"
    assert compose(["+plan=corrective"]).plan.init_from == "plan:foundation"


def test_the_command_line_beats_the_profile():
    config = compose(
        ["+plan=corrective", "profile=production", "model=hf", "model.path=/m", "optim.lr=3e-5"]
    )
    assert (config.model.name, config.model.path, config.plan.init_from) == ("hf", "/m", "/m")
    assert config.optim.lr == 3e-5
    assert compose(BASE).model.name == "retriever_300m_moe"


def test_profiles_size_the_foundation_by_the_same_rule():
    steps = {
        profile: sum(
            p.steps
            for p in scaled(
                compose(["+plan=foundation", f"profile={profile}"])
            ).plan.phases.values()
        )
        for profile in ("demo", "tiny")
    }
    assert steps["tiny"] <= 80 < steps["demo"]


def test_tiny_is_about_sixty_steps():
    phases = scaled(compose(["+plan=corrective", "profile=tiny"])).plan.phases
    assert len(phases) == 10 and 50 <= sum(p.steps for p in phases.values()) <= 70


@given(st.dictionaries(st.text(min_size=1), st.none() | st.integers() | st.text(), min_size=1))
def test_any_tree_is_refused_without_a_trace(tree):
    with pytest.raises(UserError):
        load(tree)


def test_another_plan_under_everything_else(tmp_path):
    (tmp_path / "own" / "plan").mkdir(parents=True)
    (tmp_path / "own" / "plan" / "mine.yaml").write_text(
        "defaults:\n  - /foundation@phases.only: base_causal\n  - _self_\n"
        "name: mine\ninit_from: scratch\n"
    )
    data = tmp_path / "x[1]"
    config = compose(
        ["+plan=corrective", "profile=tiny", "seed=5", "optim.lr=2e-3", f'data.root="{data}"']
    )
    with searching(tmp_path / "own"):
        base = other_plan(config, "mine", tmp_path / "base")
    assert list(base.plan.phases) == ["only"] and base.plan.init_from == "scratch"
    assert base.plan.phases["only"].data.sources == [
        f"{glob.escape(str(data))}/base_causal/train.*"
    ]
    assert base.run.dir == str(tmp_path / "base")
    same = {"plan": None, "run": None}
    assert {**asdict(base), **same} == {**asdict(config), **same}
    with pytest.raises(UserError, match="no such plan"):
        other_plan(config, "mine", tmp_path)
