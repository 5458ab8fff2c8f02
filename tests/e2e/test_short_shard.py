"""A phase that asks for more steps than its shard holds is stopped before anything is trained."""

import json
from pathlib import Path

from command import curriculum


def test_a_replay_of_1200_steps_on_a_shard_of_46_is_an_error_with_both_numbers(tmp_path: Path):
    groups = 46 * 4  # 46 steps of four groups each
    rows = [{"query": f"what is {i}?", "positive": f"this is {i}"} for i in range(groups)]
    (tmp_path / "shard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [
        "+plan=corrective",
        "profile=tiny",
        "dry_run=data",
        "plan.phases.retrieval_university.data.sources=[shard.jsonl]",
        "plan.phases.retrieval_university.steps=120000",  # the profile takes a hundredth
    ]
    result = curriculum("run", *given, "output=json", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    shown = json.loads(result.stdout)
    (short,) = [f for f in shown["findings"] if f["code"] == "data/short"]
    assert (short["severity"], short["phase"]) == ("error", "retrieval_university")
    assert "(1,200 steps x 4)" in short["message"] and "(46 steps)" in short["message"]
    row = next(p for p in shown["phases"] if p["name"] == "retrieval_university")
    assert (row["windows_needed"], row["windows_available"]) == (4800, groups)
    assert row["windows_exact"] is True

    started = curriculum("run", *[g for g in given if g != "dry_run=data"], cwd=tmp_path)
    assert started.returncode == 1
    assert "data/short (see findings)" in started.stderr
    assert not (tmp_path / "runs").exists()
