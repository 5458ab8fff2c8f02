"""How overrides are rewritten, and the folder names of multirun jobs."""

import re

import pytest

from curriculum.overrides import is_override, job_suffix, rewritten

GROUPS = {"model", "profile", "plan", "generative"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("optim.lr=1", "++optim.lr=1"),
        ("seed=1,2", "++seed=1,2"),
        ("plan=corrective", "+plan=corrective"),
        ("+plan=corrective", "+plan=corrective"),
        ("model=hf", "model=hf"),
        ("model.path=/a=b", "++model.path=/a=b"),
        ("++seed=1", "++seed=1"),
        ("~plan.phases.a", "~plan.phases.a"),
        ("hydra.verbose=true", "hydra.verbose=true"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib"),
        ("generative@plan.phases.a=rag_qa", "generative@plan.phases.a=rag_qa"),
        ("modle=hf", "++modle=hf"),
        ("nonsense", "nonsense"),
    ],
)
def test_rewritten(given, expected):
    assert rewritten([given], GROUPS) == [expected]


def test_flags_are_no_overrides():
    arguments = ["--cfg", "job", "--package=a", "a=b", "~c", "-m"]
    assert [a for a in arguments if is_override(a)] == ["a=b", "~c"]


def test_suffix_leaves_out_what_is_in_the_path_already():
    assert job_suffix(["+plan=corrective", "profile=tiny", "++seed=1", "dry_run=true"]) == "seed-1"
    assert job_suffix(["+plan=corrective"]) == ""


def test_suffix_is_a_safe_and_distinct_name():
    jobs = [["++a=x y"], ["++a=x,y"], ["++a='x/y'"], ["++a=../.."], [f"++a={'9' * 300}"],
            [f"++a={'9' * 300}8"], ["++a=é"], ["++lr=1e-3"], ["++lr=0.001"]]  # fmt: skip
    names = [job_suffix(job) for job in jobs]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,140}", name) for name in names)
    assert job_suffix(["b=1", "a=2"]) == job_suffix(["a=2", "++b=1"])
