"""`store list | why | gc`, and how finished phases are used again between runs."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ENVIRONMENT
from small_plan import command, diamond, final, phase, rows, run, stored, watch_steps, write

from curriculum.store.claim import Claim
from curriculum.store.use import in_use

NAMES = "abcdefghij"


def ten() -> dict[str, dict[str, Any]]:
    """Ten phases in a row, of two steps each."""
    return {name: phase(steps=2) for name in NAMES}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten phases, finished."""
    root = tmp_path_factory.mktemp("kept")
    write(root, ten())
    assert run(root) == 0
    return root


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    """The same elsewhere, with hard links between run and store as they were."""
    root = tmp_path / "root"
    subprocess.run(["cp", "-a", str(kept), str(root)], check=True)
    directory = root / ".curriculum" / "store"
    shutil.rmtree(directory / ".use/runs")  # it names the run at its old place
    with in_use(directory, root / "runs/small/small", {p.name for p in stored(root).values()}):
        return root


def ask(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    capsys.readouterr()
    plan = ["+plan=small", "profile=small"] if words[0] == "why" else []
    here = os.getcwd()
    os.chdir(root)
    try:
        from curriculum.cli import main

        more = ["--config-dir", str(root / "conf")] if plan else []
        assert main(["store", *words, *plan, *more, "output=json"]) == 0
    finally:
        os.chdir(here)
    return json.loads(capsys.readouterr().out)


def on_disk(root: Path) -> int:
    """Bytes of all files below a directory, each inode once."""
    inodes = {}
    for folder, _, names in os.walk(root):
        for name in names:
            stat = os.stat(os.path.join(folder, name))
            inodes[stat.st_ino] = stat.st_size
    return sum(inodes.values())


def test_a_later_edit_keeps_the_phases_before_it(kept: Path, copy: Path, tmp_path: Path) -> None:
    """Edit the eighth: seven are cached, three run, and the end is that of a run from nothing."""
    edit = "plan.phases.h.lr_scale=0.5"
    for root in (copy, tmp_path / "fresh"):
        write(root, ten())
    for name in NAMES:  # the same content, so the same keys
        shutil.copy(copy / "data" / f"{name}.jsonl", tmp_path / "fresh" / "data")
    assert run(copy, edit, "run.dir=runs/edited") == 0
    assert run(tmp_path / "fresh", edit) == 0
    planned = json.loads((copy / "runs/edited/dry_run.json").read_text())
    assert [p["cached"] for p in planned["phases"]] == [True] * 7 + [False] * 3
    left = planned["totals"]["left"]
    assert (left["phases"], left["steps"], left["nominal_tokens"]) == (3, 6, 6 * 2 * 16)
    assert {row["phase"] for row in rows(copy, "runs/edited")} == set("hij")
    one, two = final(copy, "runs/edited"), final(tmp_path / "fresh")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], tensor) for name, tensor in final(kept).items())
    ledger = json.loads((copy / "runs/edited/ledger.json").read_text())["rows"]
    assert [row["status"] for row in ledger] == ["reused"] * 7 + ["done"] * 3


def test_an_edited_branch_keeps_the_other_one_in_the_same_directory(tmp_path: Path) -> None:
    write(tmp_path, diamond())
    assert run(tmp_path) == 0
    before = {name: path.name for name, path in stored(tmp_path).items()}
    edit = "plan.phases.b.lr_scale=0.7"
    assert run(tmp_path, edit) == 0
    kept_rows = rows(tmp_path)
    assert [row["phase"] for row in kept_rows] == list("aaaccccbbbee")
    assert [row["step"] for row in kept_rows] == list(range(1, 13))
    other = tmp_path / "other"
    write(other, diamond())
    assert run(other, edit) == 0
    one, two = final(tmp_path), final(other)
    assert all(torch.equal(one[name], two[name]) for name in one)
    keys = {p.name for p in (tmp_path / ".curriculum/store").iterdir() if p.name[0] != "."}
    assert set(before.values()) < keys and len(keys) == 5 + 3


def test_variants_of_the_last_phase_train_the_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, ten())
    steps: list[None] = []
    watch_steps(monkeypatch, lambda engine: steps.append(None))
    code = command(
        *(tmp_path, "run", "+plan=small", "profile=small", "tracking=none", "--multirun"),
        "plan.phases.j.steps=2,3,4",
    )
    assert code == 0
    assert len(steps) == 9 * 2 + 2 + 3 + 4
    runs = sorted((tmp_path / "runs/small/small").iterdir())
    ends = [final(tmp_path, str(directory)) for directory in runs]
    assert len(ends) == 3
    assert any(not torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.slow
def test_two_runs_at_once_share_a_store(tmp_path: Path) -> None:
    write(tmp_path, ten())
    arguments = [sys.executable, "-m", "curriculum", "run", "+plan=small", "profile=small"]
    arguments += ["tracking=none", "--config-dir", "conf"]
    both = [
        subprocess.Popen(
            [*arguments, f"run.dir=runs/{n}"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in (1, 2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    one, two = final(tmp_path, "runs/1"), final(tmp_path, "runs/2")
    assert all(torch.equal(one[name], two[name]) for name in one)
    trained = [{row["phase"] for row in rows(tmp_path, f"runs/{n}")} for n in (1, 2)]
    assert trained[0] | trained[1] == set(NAMES) and not trained[0] & trained[1]
    for mine, n in zip(trained, (1, 2), strict=True):
        ledger = json.loads((tmp_path / f"runs/{n}/ledger.json").read_text())["rows"]
        assert {row["phase"] for row in ledger if row["status"] == "done"} == mine
        assert [(row["phase"], row["steps"]) for row in ledger] == [(name, 2) for name in NAMES]
    left = {p.name for p in (tmp_path / ".curriculum/store").iterdir() if p.name[0] != "."}
    assert len(left) == 10
    assert not list((tmp_path / ".curriculum/store").glob(".*.tmp"))


@pytest.mark.timeout(90)
def test_a_run_waits_for_the_phase_that_another_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, {"a": phase(), "b": phase(), "c": phase()})
    assert run(tmp_path) == 0
    ends, other = stored(tmp_path), tmp_path / "other"
    claim = Claim(other, ends["b"].name)
    assert claim.take() and not Claim(other, ends["b"].name).take()

    def finish(record: logging.LogRecord) -> bool:
        if record.getMessage() == "phase b is trained by another run: waiting":
            shutil.copytree(ends["b"], other / ends["b"].name)
            claim.release()
        return True

    monkeypatch.setattr("curriculum.training.finished._POLL_SECONDS", 0.01)
    logger = logging.getLogger("curriculum.training.finished")
    logger.addFilter(finish)
    try:
        with caplog.at_level(logging.INFO, logger="curriculum.training.finished"):
            assert run(tmp_path, f"store.dir={other}", "run.dir=runs/other") == 0
    finally:
        logger.removeFilter(finish)
    recorded = rows(tmp_path, "runs/other")
    assert [(r["phase"], r["step"]) for r in recorded] == [
        *(("a", n) for n in (1, 2, 3)),
        *(("c", n) for n in (7, 8, 9)),
    ]
    one, two = final(tmp_path), final(tmp_path, "runs/other")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert list((other / ".use/claims").iterdir()) == []


def test_list(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = ask(capsys, kept, "list")
    assert sorted(row["phase"] for row in tree["phases"]) == list(NAMES)
    assert {row["plan"] for row in tree["phases"]} == {"small"}
    files = [p for p in (kept / ".curriculum/store").rglob("*") if p.is_file()]
    entries = [p for p in files if p.relative_to(kept / ".curriculum/store").parts[0][0] != "."]
    assert tree["bytes"] == sum({p.stat().st_ino: p.stat().st_size for p in entries}.values())
    # what the run still keeps beside its store frees nothing but its record
    alone = {row["phase"]: row["bytes"] - row["freed_bytes"] for row in tree["phases"]}
    assert alone["a"] == 0 and alone["j"] > 0.9 * tree["phases"][0]["bytes"]
    assert command(kept, "store", "list") == 2  # takes no --config-dir
    here = os.getcwd()
    os.chdir(kept)
    try:
        from curriculum.cli import main

        assert main(["store", "list"]) == 0
    finally:
        os.chdir(here)
    assert "10 finished phases" in capsys.readouterr().out


def test_why_names_the_first_cause(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = ask(capsys, kept, "why")
    assert same["finished"] and same["differences"] == [] and same["phase"] == "j"
    edits = ["plan.phases.c.lr_scale=0.5", "plan.phases.h.data.loss_on=all", "phase=j"]
    tree = ask(capsys, kept, "why", *edits)
    assert not tree["finished"] and tree["first_cause"] == "small.c"
    found = {(d["place"], d["part"]): (d["here"], d["there"]) for d in tree["differences"]}
    assert found["small.c", "phase.lr_scale"] == (0.5, 1.0)
    assert found["small.h", "phase.data.loss_on"] == ("all", "assistant")
    assert {place for place, _ in found} == {"small.c", "small.h"}
    # without a phase: the first one that would run
    assert ask(capsys, kept, "why", edits[1])["phase"] == "h"


def test_why_names_the_file_that_changed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copy / "data" / "d.jsonl"
    file.write_text(file.read_text() + json.dumps({"text": "amber bells"}) + "\n")
    write(copy, ten())
    tree = ask(capsys, copy, "why")
    assert tree["phase"] == "d" and tree["first_cause"] == "small.d"
    parts = [d["part"] for d in tree["differences"]]
    assert f"data {file}" in parts


def test_why_of_a_stored_key(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = stored(kept)["e"].name
    capsys.readouterr()
    words = ["store", "why", key[:8], f"store.dir={kept}/.curriculum/store"]
    from curriculum.cli import main

    assert main(words) == 0
    assert "no other finished phase of that name" in capsys.readouterr().out
    assert main(["store", "why", "nothing", words[-1]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: nothing: no such key in the store") and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["store", "gc", "older_than=3"], "older_than=3: "),
        (["store", "gc", "keep=-1"], "keep=-1: "),
        (["store", "gc", "olderthan=3d"], "olderthan=3d: unknown key; did you mean 'older_than'?"),
        (["store", "why"], "usage: store why"),
        (["store", "purge"], "purge: no such store command"),
        (["store", "why", "+plan=small", "profile=small", "phase=zz"], "phase=zz: no such phase"),
    ],
)
def test_wrong_words_end_in_one_line(
    kept: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    here = os.getcwd()
    os.chdir(kept)
    try:
        from curriculum.cli import main

        more = ["--config-dir", "conf"] if "phase=zz" in words else []
        assert main([*words, *more]) == 2
    finally:
        os.chdir(here)
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_gc_takes_what_no_run_directory_reaches(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(copy, "plan.phases.h.lr_scale=0.5") == 0  # in the same directory
    before = on_disk(copy)
    planned = ask(capsys, copy, "gc")
    assert planned["dry_run"] and on_disk(copy) == before
    assert sorted(row["phase"] for row in planned["deleted"]) == ["h", "i", "j"]
    done = ask(capsys, copy, "gc", "dry_run=false")
    assert [row["key"] for row in done["deleted"]] == [row["key"] for row in planned["deleted"]]
    assert before - on_disk(copy) == done["freed_bytes"] > 0
    assert ask(capsys, copy, "gc")["deleted"] == []
    shutil.rmtree(copy / "runs")
    gone = ask(capsys, copy, "gc", "dry_run=false")
    assert len(gone["deleted"]) == 10
    assert ask(capsys, copy, "list")["phases"] == []


def test_gc_by_age_and_number(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for days, name in enumerate(NAMES):
        record = stored(copy)[name] / "key.json"
        at = record.stat().st_mtime - 86400 * days
        os.utime(record, (at, at))
    old = ask(capsys, copy, "gc", "older_than=5.5d")
    assert sorted(row["phase"] for row in old["deleted"]) == list("ghij")
    many = ask(capsys, copy, "gc", "keep=7")
    assert sorted(row["phase"] for row in many["deleted"]) == list("hij")
    both = ask(capsys, copy, "gc", "keep=9", "older_than=1h")
    assert [row["phase"] for row in both["deleted"]] == ["j"]
    assert ask(capsys, copy, "gc", "keep=0", "unreachable=true")["deleted"] == []


def test_gc_leaves_what_a_running_process_uses(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, key = copy / ".curriculum/store", stored(copy)["c"].name
    left = directory / f".{key}.1.tmp"
    left.mkdir()
    with in_use(directory, copy / "runs/other", [key]):
        found = ask(capsys, copy, "gc", "keep=0", "dry_run=false")
        kept = {row["phase"]: row["why"] for row in found["kept"]}
        assert kept == {"c": f"in use by {copy / 'runs/other'}"}
        assert left.is_dir(), "a running process may be writing it"
    assert list(stored(copy)) == ["c"]
    # a process that was killed leaves its file behind, unlocked
    users = directory / ".use/processes"
    (users / "host-1-x.json").write_text(json.dumps({"run": "r", "keys": [key]}))
    found = ask(capsys, copy, "gc", "keep=0", "dry_run=false")
    assert [row["phase"] for row in found["deleted"]] == ["c"]
    assert found["leftovers"] == [left.name] and not left.exists()
    assert list(users.iterdir()) == []


def test_a_run_names_its_keys_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from curriculum.store.use import uses

    write(tmp_path, {"a": phase(steps=1), "b": phase(steps=1)})
    seen = []
    watch_steps(monkeypatch, lambda engine: seen.append(uses(tmp_path / ".curriculum/store")))
    assert run(tmp_path) == 0
    keys = {path.name for path in stored(tmp_path).values()}
    for found in seen:
        (live,) = [use for use in found if use.live]
        assert keys < live.keys and live.run == str(tmp_path / "runs/small/small")
    assert not any(use.live for use in uses(tmp_path / ".curriculum/store"))


def test_a_phase_deleted_in_the_middle_is_not_trained_again(copy: Path) -> None:
    for name in "bcf":
        shutil.rmtree(stored(copy)[name])
    assert run(copy, "plan.phases.j.steps=1", "run.dir=runs/later") == 0
    assert [row["phase"] for row in rows(copy, "runs/later")] == ["j"]
    ledger = json.loads((copy / "runs/later/ledger.json").read_text())["rows"]
    assert [(row["phase"], row["steps"]) for row in ledger] == [
        *((name, 2) for name in NAMES[:9]),
        ("j", 1),
    ]


def test_a_damaged_end_is_trained_again_and_replaced(copy: Path) -> None:
    """Of the right size, so that only its content tells."""
    from curriculum import store

    assert run(copy, "plan.phases.j.steps=1", "run.dir=runs/good") == 0
    for path in (copy / ".curriculum" / "store").glob("[!.]*"):
        if json.loads((path / "meta.json").read_text())["phase"] == "j":
            shutil.rmtree(path)
    broken = stored(copy)["i"]
    shard = max(broken.glob("state/*.distcp"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert run(copy, "plan.phases.j.steps=1", "run.dir=runs/again") == 0
    assert [row["phase"] for row in rows(copy, "runs/again")] == ["i", "i", "j"]
    assert store.corruption(stored(copy)["i"]) is None
    one, two = final(copy, "runs/good"), final(copy, "runs/again")
    assert all(torch.equal(one[name], two[name]) for name in one)
