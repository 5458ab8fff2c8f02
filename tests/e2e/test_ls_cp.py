"""`ls`, `cp` and `--config-dir`."""

import json

import pytest
from command import curriculum, files, one_error

from curriculum.cli import main
from curriculum.library import groups


def test_ls_shows_plans_cards_and_groups(tmp_path, capsys):
    assert main(["ls"]) == 0
    shown = capsys.readouterr().out
    assert "plan/corrective" in shown and "10 phases" in shown
    assert "generative/rag_qa" in shown and "1800 x 32 x 2048" in shown
    assert "profile/demo" in shown
    assert main(["ls", "retrieval_"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == [f"replay/retrieval_{t}" for t in ("advanced", "foundations", "school",
                                                      "university")]  # fmt: skip


def test_a_copied_and_edited_plan_wins(tmp_path):
    mine = tmp_path / "my folder=1"
    copied = curriculum("cp", "plan/corrective", str(mine), cwd=tmp_path)
    assert copied.returncode == 0
    assert len(files(mine)) == 11
    assert set(copied.stdout.splitlines()) == {str(mine / name) for name in files(mine)}

    card = mine / "phases/generative/rag_qa.yaml"
    card.write_text(card.read_text().replace("steps: 1800", "steps: 7"))
    plan = mine / "plan/corrective.yaml"
    plan.write_text(plan.read_text().replace("name: corrective", "name: mine"))
    arguments = ("run", "+plan=corrective", "profile=production", "dry_run=true", "output=json")
    edited = json.loads(curriculum(*arguments, "--config-dir", str(mine), cwd=tmp_path).stdout)
    assert edited["plan"] == "mine"
    assert edited["phases"][0]["steps"] == 7
    assert edited["totals"]["steps"] == 6550 - 1800 + 7
    shipped = json.loads(curriculum(*arguments, cwd=tmp_path).stdout)
    assert shipped["totals"]["steps"] == 6550


def test_own_plan_beside_shipped_cards(tmp_path, capsys):
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "short.yaml").write_text(
        "defaults:\n  - /generative@phases.only: planning\n  - _self_\n"
        "name: short\ninit_from: scratch\n"
    )
    code = main(["run", "plan=short", "dry_run=true", "output=json", f"--config-dir={tmp_path}"])
    tree = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in tree["phases"]] == ["only"]
    assert code == 1 and [f["code"] for f in tree["findings"]] == ["plan/starts-from-scratch"]
    assert main(["ls", "plan/", "-cd", str(tmp_path)]) == 0
    assert "plan/short" in capsys.readouterr().out


def test_one_card(tmp_path, capsys):
    assert main(["cp", "replay/causal_school", str(tmp_path)]) == 0
    assert files(tmp_path) == {"phases/replay/causal_school.yaml"}
    own, shipped = (groups(d)["replay"]["causal_school"] for d in (tmp_path, None))
    assert own != shipped and own.read_text() == shipped.read_text()


def test_copies_are_not_overwritten(tmp_path, capsys):
    assert main(["cp", "plan/foundation", str(tmp_path)]) == 0
    assert main(["cp", "plan/foundation", str(tmp_path)]) == 0, "equal files may be copied again"
    card = tmp_path / "phases/foundation/base_causal.yaml"
    card.write_text("mine\n")
    capsys.readouterr()
    assert main(["cp", "plan/foundation", str(tmp_path)]) == 2
    assert f"{card} exists and differs; --force overwrites it" in capsys.readouterr().err
    assert card.read_text() == "mine\n"
    assert main(["cp", "plan/foundation", str(tmp_path), "--force"]) == 0
    assert card.read_text() != "mine\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cp", "plan/corectiv", "d"), "no such thing; did you mean 'plan/corrective'?"),
        (("ls", "zzz"), "ls zzz: nothing by that name"),
        (("ls", "--config-dir", "nowhere"), "--config-dir nowhere: no such folder"),
    ],
)
def test_wrong_names(tmp_path, arguments, message):
    assert message in one_error(curriculum(*arguments, cwd=tmp_path))
    assert files(tmp_path) == set()


def test_every_shipped_card_and_plan_is_listed(tmp_path):
    found = groups()
    assert set(found["plan"]) == {"calibrated", "corrective", "first_sft", "foundation"}
    assert {len(found[g]) for g in ("generative", "replay", "foundation")} == {5, 8, 3}
