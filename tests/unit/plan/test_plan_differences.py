"""What differs between two phases, against differences made by hand."""

import json
from dataclasses import replace

import pytest

from curriculum.compose import compose
from curriculum.plan.differences import ABSENT, Difference, differences
from curriculum.plan.graph import order
from curriculum.plan.keys import Content, KeyRecord, from_json, phase_records, to_json
from curriculum.plan.scale import scaled

START = KeyRecord("p", None, [], {"plan.init_from": "scratch", "seed": 1})


def chain(**edits):
    """start -> a -> b -> c, each with `edits` of its parts."""
    records = {START.key: START}
    last = START.key
    for name in "abc":
        parts = {
            "name": name,
            "phase.lr_scale": 1.0,
            "optim.betas": [0.9, 0.95],
            **edits.get(name, {}),
        }
        record = KeyRecord("p", name, [last], parts)
        last = record.key
        records[last] = record
    return records, last


def compared(one, other):
    return [(d.place, d.part, d.here, d.there) for d in differences(*one, *other)]


def test_equal_keys_have_no_difference():
    assert compared(chain(), chain()) == []


def test_the_first_cause_comes_first_and_what_follows_from_it_is_not_told():
    found = compared(chain(b={"phase.lr_scale": 0.5}), chain())
    assert found == [("p.b", "phase.lr_scale", 0.5, 1.0)]
    both = chain(a={"optim.betas": [0.9, 0.99]}, c={"phase.lr_scale": 2.0})
    assert compared(both, chain()) == [
        ("p.a", "optim.betas", [0.9, 0.99], [0.9, 0.95]),
        ("p.c", "phase.lr_scale", 2.0, 1.0),
    ]


def test_nested_values_are_named_by_their_path():
    one = chain(c={"phase.data": {"loss_on": "all", "strict": False}})
    other = chain(c={"phase.data": {"loss_on": "assistant", "strict": False}})
    assert compared(one, other) == [("p.c", "phase.data.loss_on", "all", "assistant")]
    assert compared(one, chain())[0][3] == ABSENT


def test_another_phase_above_is_the_difference():
    records, last = chain()
    inserted = KeyRecord("p", "x", [records[last].parents[0]], {"name": "x"})
    moved = replace(records[last], parents=[inserted.key])
    longer = {**records, inserted.key: inserted, moved.key: moved}
    assert compared((longer, moved.key), (records, last)) == [("p.c", "continues", "x", "b")]


def test_a_lost_record_is_told():
    records, last = chain(a={"phase.lr_scale": 3.0})
    cut = {key: record for key, record in records.items() if record.phase in ("b", "c")}
    (found,) = differences(cut, last, *chain())
    assert found.part == "record" and "nothing is known" in found.here


def file_record(files):
    told = {"data": files}
    digest = "".join(files.values())
    return KeyRecord("p", "a", [], {"name": "a", "data": digest}, told)


@pytest.mark.parametrize(
    ("mine", "its", "told"),
    [
        ({"x": "1"}, {"x": "2"}, [("data x", "content 1", "content 2")]),
        ({"x": "1", "y": "2"}, {"x": "1"}, [("data y", "content 2", ABSENT)]),
        # the same content under another name, with one file less
        ({"here/x": "1", "y": "2"}, {"there/x": "1"}, [("data y", "content 2", ABSENT)]),
        ({"x": "1", "y": "2"}, {"y": "2", "x": "1"}, [("data, order of files", "x, y", "y, x")]),
        ({"x": "1", "y": "2"}, {"x": "2", "y": "1"}, [("data, order of files", "x, y", "x, y")]),
    ],
)
def test_files_are_named(mine, its, told):
    one, other = file_record(mine), file_record(its)
    found = differences({one.key: one}, one.key, {other.key: other}, other.key)
    assert [(d.part, d.here, d.there) for d in found] == told


def plan_chain(*overrides, data=""):
    """Chain of the corrective plan's last phase, as a stored record is read."""
    config = scaled(compose(["+plan=corrective", *overrides]))
    content = {n: Content(f"{n}{data}", {f"/{n}.jsonl": f"{n}{data}"}) for n in order(config.plan)}
    records = phase_records(config, START.key, content, Content("t", {"tokenizer.json": "t"}))
    last = records["planning"]
    values = to_json(last.key, {r.key: r for r in [START, *records.values()]})
    return from_json(json.loads(json.dumps(values))), last.key


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("plan.phases.planning.steps=1200", [("planning", "steps", 120, 90)]),
        ("optim.weight_decay=0.2", None),
        ("schedule.warmup_steps=300", None),
        (
            "plan.phases.qa_mixture.data.loss_on=all",
            [("qa_mixture", "phase.data.loss_on", "all", "assistant")],
        ),
    ],
)
def test_a_real_plan(override, expected):
    found = differences(*plan_chain(override), *plan_chain())
    if expected is None:  # every phase that the value reaches, from the first on
        assert found[0].place == "corrective.rag_qa"
        name = override.partition("=")[0]
        assert {d.part for d in found} <= {name, "learning rate, first step"}
        assert found[0].part == name
    else:
        assert found == [Difference(f"corrective.{p}", *rest) for p, *rest in expected]


def test_rates_and_lr_scale_of_a_phase():
    found = differences(*plan_chain("plan.phases.planning.lr_scale=0.9"), *plan_chain())
    assert ("corrective.planning", "phase.lr_scale", 0.9, 1.0) in [
        (d.place, d.part, d.here, d.there) for d in found
    ]
    assert {d.place for d in found} == {"corrective.planning"}
