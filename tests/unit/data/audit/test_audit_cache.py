"""Facts are collected once per content, and never trusted when damaged; table and JSON."""

import json
from pathlib import Path

import pytest
from audit_builders import config_of, qa
from data_builders import write_jsonl

from curriculum.data.audit import audit, audit_plan, cache


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks of the sources that were read."""
    seen: list[str] = []
    collect = cache.collect
    monkeypatch.setattr(cache, "collect", lambda s, t, *a: seen.append(t) or collect(s, t, *a))
    return seen


def _rows() -> list[dict[str, object]]:
    return [qa(n, "The same answer" if n < 10 else None) for n in range(50)]


def test_a_second_audit_reads_no_record(tmp_path: Path, reads: list[str]) -> None:
    write_jsonl(tmp_path / "train.jsonl", _rows())
    first = audit_plan(config_of(tmp_path, "qa"), {})
    second = audit_plan(config_of(tmp_path, "qa"), {})
    assert reads == ["qa"]
    assert second == first
    assert first.findings


def test_a_changed_byte_is_seen(tmp_path: Path, reads: list[str]) -> None:
    file = write_jsonl(tmp_path / "train.jsonl", _rows())
    (before,) = audit(config_of(tmp_path, "qa"), {})
    assert "10 of 50" in before.message
    data = file.read_bytes()
    file.write_bytes(data.replace(b"The same answer", b"The same answef", 1))
    (after,) = audit(config_of(tmp_path, "qa"), {})
    assert "9 of 50" in after.message
    assert len(reads) == 2


def test_a_copy_of_the_files_has_addresses_of_its_own(tmp_path: Path, reads: list[str]) -> None:
    write_jsonl(tmp_path / "a.jsonl", _rows()[:30])
    write_jsonl(tmp_path / "b.jsonl", _rows()[:30])
    for name in ("a", "b"):
        config = config_of(tmp_path, "qa", sources=[str(tmp_path / f"{name}.jsonl")])
        assert audit(config, {})[0].examples[0] == f"{tmp_path}/{name}.jsonl:1"
    assert reads == ["qa"]


def test_phases_with_the_same_files_read_them_once(tmp_path: Path, reads: list[str]) -> None:
    from dataclasses import replace

    write_jsonl(tmp_path / "train.jsonl", _rows())
    config = config_of(tmp_path, "qa")
    one = config.plan.phases["one"]
    twice = replace(config, plan=replace(config.plan, phases={"one": one, "two": one}))
    assert [finding.phase for finding in audit(twice, {})] == ["one", "two"]
    assert reads == ["qa"]


@pytest.mark.parametrize("damage", ["cut", "garbage", "flip"])
def test_a_damaged_cache_is_collected_again(tmp_path: Path, reads: list[str], damage: str) -> None:
    write_jsonl(tmp_path / "train.jsonl", _rows())
    config = config_of(tmp_path, "qa")
    first = audit(config, {})
    (file,) = (tmp_path / "cache" / "audit").iterdir()
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0xFF
    file.write_bytes(data[:-100] if damage == "cut" else data if damage == "flip" else b"no zip")
    assert audit(config, {}) == first
    assert len(reads) == 2


def test_rows_of_a_table_have_addresses_too(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(_rows()), file)
    (finding,) = audit(config_of(tmp_path, "qa", sources=[str(file)]), {})
    assert finding.examples == tuple(f"{file}: row {n}" for n in range(3))


def test_table_and_json(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", _rows())
    report = audit_plan(config_of(tmp_path, "qa"), {})
    table = report.table(80)
    assert all(len(line) <= 80 or str(tmp_path) in line for line in table.splitlines())
    assert "20.0%" in table
    assert f"{tmp_path}/train.jsonl:1" in table
    values = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert set(values) == {"plan", "profile", "phases", "findings"}
    (phase,) = values["phases"]
    assert (phase["name"], phase["records"], phase["top_target"]) == ("one", 50, 0.2)
    assert phase["distinct_targets"] == 41
    assert phase["trained"] is None
    assert values["findings"][0]["code"] == "data/dominant-target"
    assert len(values["findings"][0]["examples"]) == 3
