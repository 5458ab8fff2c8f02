"""Every file format gives the same records; what is cut off or damaged is refused by name."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from curriculum.data.sources import Source, unpack
from curriculum.errors import RunError, UserError

RECORDS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"question {i}\u2028\u0085"}], "n": i, "x": 0.5}
    for i in range(3000)
]


def _lines(records) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def _table(records) -> pa.Table:
    return pa.Table.from_pylist(records)


def _jsonl(path: Path) -> None:
    path.write_bytes(_lines(RECORDS))


def _gzip(path: Path) -> None:  # two members, as `cat a.gz b.gz` gives
    path.write_bytes(gzip.compress(_lines(RECORDS[:100])) + gzip.compress(_lines(RECORDS[100:])))


def _zstd(path: Path) -> None:
    pack = zstandard.ZstdCompressor().compress
    path.write_bytes(b"".join(pack(_lines(RECORDS[i : i + 1000])) for i in (0, 1000, 2000)))


def _json_array(path: Path) -> None:
    path.write_text("\ufeff \n" + json.dumps(RECORDS, indent=2, ensure_ascii=False) + "\n\n")


def _parquet(path: Path) -> None:
    pq.write_table(_table(RECORDS), path, row_group_size=700, compression="zstd")


def _arrow_file(path: Path) -> None:
    table = _table(RECORDS)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, 500)


def _arrow_stream(path: Path) -> None:
    table = _table(RECORDS)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, 500)


WRITERS = {
    "a.jsonl": _jsonl,
    "a.jsonl.gz": _gzip,
    "a.jsonl.zst": _zstd,
    "a.json": _json_array,
    "lines.json": _jsonl,
    "a.parquet": _parquet,
    "a.arrow": _arrow_file,
    "stream.arrow": _arrow_stream,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_records_with_an_address(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    source = Source([path], tmp_path / "cache")
    assert [orjson.loads(source[i][1]) for i in range(len(source))] == RECORDS
    place = str(source[2999][0])
    by_row = name in ("a.json", "a.parquet", "a.arrow", "stream.arrow")
    assert place == (f"{path}: row 2999" if by_row else f"{path}:3000")
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_several_formats_are_one_sequence(tmp_path):
    files = [tmp_path / name for name in WRITERS]
    for file in files:
        WRITERS[file.name](file)
    source = Source(files, tmp_path / "cache")
    assert source.counts == [len(RECORDS)] * len(WRITERS)
    assert source[3000][0].file == str(files[1])


def test_a_file_is_unpacked_once_by_content(tmp_path, monkeypatch):
    path, cache = tmp_path / "a.jsonl.gz", tmp_path / "cache"
    _gzip(path)
    Source([path], cache)
    (copy,) = (cache / "unpacked").glob("*.jsonl")

    def fail(*_):
        raise AssertionError("unpacked again")

    monkeypatch.setitem(unpack.FORMATS, ".jsonl.gz", fail)
    path.rename(tmp_path / "b.jsonl.gz")
    assert len(Source([tmp_path / "b.jsonl.gz"], cache)) == len(RECORDS)
    monkeypatch.undo()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n'))
    assert Source([tmp_path / "b.jsonl.gz"], cache)[0][1] == b'{"n": 1}'
    assert copy.is_file()


def test_null_columns_are_absent_fields(tmp_path):
    """Columns give every record every key: a template that asks `is defined` must not see them."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]},
            ]
        },
        {"messages": [{"role": "user", "content": "b"}], "meta": "m"},
    ]
    table = _table([{"meta": None} | rows[0], rows[1]])
    assert table.to_pylist() != rows
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        source = Source([tmp_path / name], tmp_path / "cache")
        assert [orjson.loads(source[i][1]) for i in range(2)] == rows


def _cut(path: Path, fraction: float) -> None:
    os.truncate(path, int(path.stat().st_size * fraction))


@pytest.mark.parametrize("name", [n for n in WRITERS if n not in ("a.jsonl", "lines.json")])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_is_refused(tmp_path, name, fraction):
    path = tmp_path / name
    WRITERS[name](path)
    _cut(path, fraction)
    with pytest.raises(RunError, match=rf"{name}: (cannot be read|the file is empty)"):
        Source([path], tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.jsonl"))
    assert not list((tmp_path / "cache").rglob("*.tmp"))


@pytest.mark.parametrize("batches", range(1, 6))
def test_a_stream_that_is_cut_between_batches_is_refused(tmp_path, batches):
    """pyarrow itself reads such a file as a shorter one."""
    path, table = tmp_path / "stream.arrow", _table(RECORDS)
    with pa.OSFile(str(path), "wb") as sink:
        writer = pa.ipc.new_stream(sink, table.schema)
        for start in range(0, 500 * batches, 500):
            writer.write_table(table.slice(start, 500))
        size = sink.tell()
        writer.close()
    os.truncate(path, size)
    assert pa.ipc.open_stream(path.read_bytes()).read_all().num_rows == 500 * batches
    with pytest.raises(RunError, match=r"stream\.arrow: cannot be read: .*no end-of-stream marker"):
        Source([path], tmp_path / "cache")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_bytes_after_the_end_are_refused(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    with path.open("ab") as handle:
        handle.write(b"more bytes")
    with pytest.raises(RunError, match=rf"{name}: cannot be read"):
        Source([path], tmp_path / "cache")


def test_a_stream_that_is_followed_by_another_is_refused(tmp_path):
    path = tmp_path / "stream.arrow"
    _arrow_stream(path)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(RunError, match="bytes after the end of its stream"):
        Source([path], tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (" \n ", "at least one record"),
        ("[]", "at least one record"),
        ('[{"a": 1}, {"a": 2}', "comma or ] is missing before row 2"),
        ('[{"a": 1} {"a": 2}]', "comma or ] is missing before row 1"),
        ('[{"a": 1},\n\n{"a": }]', r"row 1 \(from line 3 on\): not valid JSON"),
        ('[{"a": 1}] [2]', "holds something after its array"),
        ("[" * 100_000, r"row 0 \(from line 1 on\): not valid JSON \(nested too deeply\)"),
        ('[{"a": 1},]', "row 1 .*not valid JSON"),
    ],
)
def test_json_arrays_that_are_wrong_say_where(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(RunError, match=message):
        Source([path], tmp_path / "cache")


def test_a_json_file_keeps_what_is_wrong_with_a_record_for_those_who_read_it(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1,\n "a": 2}, 3, null, {"b": "x\\ny"}]')
    source = Source([path], tmp_path / "cache")
    assert [source[i][1] for i in range(4)] == [
        b'{"a": 1,  "a": 2}',
        b"3",
        b"null",
        b'{"b": "x\\ny"}',
    ]
    path.write_text('{"question": "one",\n "answer": "record"}')
    assert len(Source([path], tmp_path / "cache")) == 1


def test_columns_that_are_no_plain_values_and_foreign_formats_are_named(tmp_path):
    pq.write_table(pa.table({"a": [b"\xff"]}), tmp_path / "a.parquet")
    with pytest.raises(RunError, match=r"a\.parquet: cannot be read: row 0: .*bytes"):
        Source([tmp_path / "a.parquet"], tmp_path / "cache")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(UserError, match=r"'\.csv' is not supported; supported: \.jsonl, "):
        Source([tmp_path / "a.csv"], tmp_path / "cache")
    (tmp_path / "b.parquet").write_text('{"a": 1}\n')
    with pytest.raises(RunError, match=r"b\.parquet: cannot be read: "):
        Source([tmp_path / "b.parquet"], tmp_path / "cache")


def test_a_killed_unpacking_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    path, cache = tmp_path / "a.jsonl.gz", tmp_path / "cache"
    _gzip(path)

    def killed(_file, out):
        out.write(b'{"n": 0}\n')
        raise KeyboardInterrupt

    monkeypatch.setitem(unpack.FORMATS, ".jsonl.gz", killed)
    with pytest.raises(KeyboardInterrupt):
        Source([path], cache)
    monkeypatch.undo()
    assert len(Source([path], cache)) == len(RECORDS)


def test_a_record_of_many_megabytes_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    big = "x" * 20_000_000
    path.write_bytes(_lines([{"text": "a"}, {"text": big}, {"text": "b"}]))
    source = Source([path], tmp_path / "cache")
    assert [len(orjson.loads(source[i][1])["text"]) for i in range(3)] == [1, 20_000_000, 1]
