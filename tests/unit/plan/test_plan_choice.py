"""Choice phases in a plan: one pass over their bins, what is left over, and their keys."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_builders import config, phase

from curriculum.config import ChoiceEval, Config
from curriculum.errors import UserError
from curriculum.plan.budget import WindowCount, plan_budget, settled
from curriculum.plan.checks import CheckContext, run_checks
from curriculum.plan.consistency import consistent
from curriculum.plan.keys import Content, phase_records
from curriculum.plan.user_code import code_files

CHOICE = {"objective": "choice", "task": "choice", "role": "calibration", "batch_size": 4}


def choice(**more: Any) -> dict[str, Any]:
    return phase(**{**CHOICE, "steps": None, **more})


def plan(tmp_path: Path, **more: Any) -> Config:
    return config({"a": phase(steps=90), "c": choice(**more)}, init_from=str(tmp_path))


def counted(settings: Config, bins: int) -> list[tuple[str, str, str]]:
    budget = plan_budget(settings, {"c": WindowCount(bins, True, None, None)})
    found = run_checks(CheckContext(settings, budget, {}, False))
    return [(f.code, f.severity, f.message) for f in found if f.phase == "c"]


@pytest.mark.parametrize(
    ("settings", "bins", "steps"),
    [
        ({}, 12, 3),
        ({}, 15, 3),
        ({"max_steps": 2}, 15, 2),
        ({"max_steps": 9}, 15, 3),
        ({"epochs": 1.0}, 15, 4),
        ({"steps": 7}, 15, 7),
        ({}, 3, 1),
    ],
)
def test_without_a_length_it_is_one_pass(
    tmp_path: Path, settings: dict[str, Any], bins: int, steps: int
) -> None:
    known = settled(plan(tmp_path, **settings), {"c": WindowCount(bins, True, None, None)})
    assert known.plan.phases["c"].steps == steps
    assert known.plan.phases["c"].max_steps is None


def test_until_its_bins_are_known_the_length_is_not(tmp_path: Path) -> None:
    row = plan_budget(consistent(plan(tmp_path)), {}).phases[1]
    assert row.steps is None and row.windows_needed is None and row.flops is None


def test_bins_that_fill_no_step_are_counted(tmp_path: Path) -> None:
    assert counted(plan(tmp_path), 12) == []
    ((code, severity, message),) = counted(plan(tmp_path), 15)
    assert (code, severity) == ("data/trailing-windows", "warning")
    assert "one pass over 15 bins is 3 steps x 4; the last 3 bins fill no step" in message


@pytest.mark.parametrize("settings", [{"epochs": 1.0}, {"max_steps": 1}, {"steps": 3}])
def test_a_length_that_was_given_leaves_nothing_to_tell(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    assert counted(plan(tmp_path, **settings), 15) == []


def test_fewer_bins_than_a_step_are_short(tmp_path: Path) -> None:
    assert [code for code, _, _ in counted(plan(tmp_path), 3)] == ["data/short"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"task": "qa"}, "task='qa': does not fit objective 'choice'"),
        ({"objective": "generative"}, "task='choice': does not fit objective 'generative'"),
        (
            {"objective": "causal", "task": "text", "loss": {"import_path": "a.b"}, "steps": 1},
            r"plan\.phases\.c\.loss\.import_path='a\.b': only choice phases take a loss",
        ),
    ],
)
def test_refused(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        consistent(plan(tmp_path, **bad))


@pytest.mark.parametrize(
    ("everywhere", "own", "told"),
    [
        ({"interval": 200}, None, [(None, "choice_eval.interval=200 is never reached in phases of"
                                    " at most 90 steps: quiz will not be evaluated")]),
        ({"interval": 90}, None, []),
        ({"interval": 200, "at_end": True}, None, []),
        ({"interval": 200, "at_start": True}, None, []),
        (None, {"interval": 8}, [("c", "plan.phases.c.choice_eval.interval=8 is never reached in"
                                  " phases of at most 7 steps: exam will not be evaluated")]),
        (None, {"interval": 7}, []),
        ({"interval": 5}, {"interval": 8}, [("c", "plan.phases.c.choice_eval.interval=8")]),
    ],
)  # fmt: skip
def test_evals_that_are_never_due_are_told_before_the_run(
    tmp_path: Path, everywhere: Any, own: Any, told: list[tuple[str | None, str]]
) -> None:
    settings = plan(
        tmp_path, steps=7, choice_eval=None if own is None else {"sets": {"exam": "e"}, **own}
    )
    if everywhere is not None:
        common = ChoiceEval(sets={"quiz": "q"}, **everywhere)
        settings = replace(settings, choice_eval=common)
    findings = run_checks(CheckContext(settings, plan_budget(settings, {}), {}, False))
    found = [f for f in findings if f.code == "plan/evals-never-due"]
    assert [f.phase for f in found] == [phase for phase, _ in told]
    for finding, (_, message) in zip(found, told, strict=True):
        assert finding.message.startswith(message) and finding.severity == "warning"


def test_evals_of_a_phase_of_unknown_length_are_not_judged(tmp_path: Path) -> None:
    settings = plan(tmp_path, choice_eval={"sets": {"exam": "e"}, "interval": 10_000})
    findings = run_checks(CheckContext(settings, plan_budget(settings, {}), {}, False))
    assert [f for f in findings if f.code == "plan/evals-never-due"] == []


def key(tmp_path: Path, code: dict[str, Content] | None = None, **more: Any) -> str:
    settings = plan(tmp_path, **{"steps": 3, **more})
    content = {name: Content(name) for name in settings.plan.phases}
    return phase_records(settings, "o", content, Content("t"), code or {})["c"].key


def test_the_loss_its_options_and_its_code_are_in_the_key(tmp_path: Path) -> None:
    own = {"import_path": "mine.loss", "kwargs": {"t": 1}}
    keys = [
        key(tmp_path),
        key(tmp_path, loss={"import_path": "curriculum.losses.kl"}),
        key(tmp_path, loss=own),
        key(tmp_path, loss={**own, "kwargs": {"t": 2}}),
        key(tmp_path, {"c": Content("one")}, loss=own),
        key(tmp_path, {"c": Content("two")}, loss=own),
    ]
    assert len(set(keys)) == len(keys)
    assert key(tmp_path, {"a": Content("one")}) != key(tmp_path)  # it descends from a
    assert key(tmp_path) == keys[0]


def test_code_is_found_without_importing_it(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "mine" / "losses.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    def files(**more: Any) -> list[Path]:
        return code_files(plan(tmp_path, **more).plan.phases["c"])

    losses, package = tmp_path / "mine" / "losses.py", tmp_path / "mine" / "__init__.py"
    assert files(loss={"import_path": "mine.losses.f"}) == [losses]
    both = {"objective": {"_target_": "mine.Own"}, "loss": {"import_path": "mine.losses.f"}}
    assert files(**both) == [losses, package]
    assert files(loss={"import_path": "curriculum.losses.kl"}) == []
    assert files(loss={"import_path": "absent.f"}) == files(loss={"import_path": "f"}) == []
    assert files() == []
