"""`python -m curriculum data abstain`, as a user calls it."""

import json
from pathlib import Path

from command import curriculum, files, one_error


def write_set(path: Path) -> None:
    rows = []
    for n in range(300):
        row = {"id": n, "passages": [f"Mill {n} is old.", f"Old Tom {n} runs it."]}
        row["question"] = f"Who runs Mill {n}?"
        row["answer"] = "I don't know." if n % 3 == 0 else f"Old Tom {n}"
        rows.append(json.dumps(row))
    path.write_text("\n".join(rows), encoding="utf-8")


def test_a_set_is_rebuilt_and_reported(tmp_path: Path) -> None:
    write_set(tmp_path / "in.jsonl")
    shown = curriculum("data", "abstain", "in.jsonl", "out.jsonl", "share=0.10", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "33.33% before, 9.91% after (22 of 222; asked for 10.00%)" in shown.stdout
    assert "dominant 100" in shown.stdout and "surplus unanswerable 78" in shown.stdout
    assert files(tmp_path) == {"in.jsonl", "out.jsonl", "out.jsonl.report.json"}
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len({row["answer"] for row in rows}) == 222
    assert all(next(iter(row)) == "question" for row in rows)

    again = curriculum("data", "abstain", "in.jsonl", "b.jsonl", "share=0.10", "output=json",
                       cwd=tmp_path)  # fmt: skip
    report = json.loads(again.stdout)
    assert report == json.loads((tmp_path / "b.jsonl.report.json").read_text())
    assert report["records"] == {
        "in": 300, "bad": 0, "out": 222, "answerable": 200, "unanswerable": 22
    }  # fmt: skip
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


def test_errors_are_one_line_and_write_nothing(tmp_path: Path) -> None:
    write_set(tmp_path / "in.jsonl")

    def error(*words: str, code: int) -> str:
        return one_error(curriculum("data", "abstain", *words, cwd=tmp_path), code=code)

    assert "did you mean 'share'" in error("in.jsonl", "o.jsonl", "share=0.1", "shar=1", code=2)
    assert "no such file" in error("none.jsonl", "o.jsonl", "share=0.1", code=2)
    assert "would replace" in error("*.jsonl", "in.jsonl", "share=0.1", code=2)
    assert files(tmp_path) == {"in.jsonl"}


def test_a_share_out_of_reach_is_a_failed_run(tmp_path: Path) -> None:
    write_set(tmp_path / "in.jsonl")
    shown = curriculum("data", "abstain", "in.jsonl", "o.jsonl", "share=0.5", cwd=tmp_path)
    assert shown.returncode == 1 and "Traceback" not in shown.stderr
    assert "error: share=0.5 cannot be reached: 100 of 300" in shown.stderr
    assert files(tmp_path) == {"in.jsonl"}


def test_help_names_every_option(tmp_path: Path) -> None:
    from dataclasses import fields

    from curriculum.data.abstention.options import Options

    shown = curriculum("data", "abstain", "--help", cwd=tmp_path)
    assert shown.returncode == 0
    assert all(f"\n  {field.name}=" in shown.stdout for field in fields(Options))
