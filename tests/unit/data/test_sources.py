"""Files, lines and digests."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curriculum.data.sources import Address, Source, digest, expand, files, known_digest, lines
from curriculum.errors import RunError, UserError


def _source(tmp_path: Path, content: bytes, name: str = "a.jsonl") -> Source:
    path = tmp_path / name
    path.write_bytes(content)
    return Source([path], tmp_path / "cache")


def _rows(source: Source) -> list[tuple[int, bytes]]:
    return [(address.line, line) for address, line in (source[i] for i in range(len(source)))]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b'{"a":1}\n{"a":2}\n', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'{"a":1}\n{"a":2}', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'{"a":1}\r\n{"a":2}\r\n', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'{"a":1}\r\n{"a":2}', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'\n\r\n{"a":1}\n \t\r\n\n{"a":2}\n\n', [(3, b'{"a":1}'), (6, b'{"a":2}')]),
        (b'\xef\xbb\xbf{"a":1}\n{"a":2}\n', [(1, b'{"a":1}'), (2, b'{"a":2}')]),
        (b'\xef\xbb\xbf\r\n{"a":1}', [(2, b'{"a":1}')]),
        (b'  {"a":1}\n', [(1, b'  {"a":1}')]),
        (b'{"a":1}\r{"a":2}\n', [(1, b'{"a":1}\r{"a":2}')]),
    ],
)
def test_lines_end_at_line_feeds_only(tmp_path, content, rows):
    assert _rows(_source(tmp_path, content)) == rows


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_other_line_marks_are_content(tmp_path, mark):
    texts = [f"before{mark}after {i}" for i in range(3)]
    # Control characters must be escaped in JSON; the others stand as they are.
    lines = [json.dumps({"text": text}, ensure_ascii=ord(mark) < 32) for text in texts]
    source = _source(tmp_path, "\n".join(lines).encode())
    assert [json.loads(source[i][1])["text"] for i in range(len(source))] == texts


def test_index_is_the_same_across_blocks(tmp_path, monkeypatch):
    rows = [json.dumps({"n": i, "text": "x" * (i % 7)}).encode() for i in range(50)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(rows))
    for block in (1, 2, 13, 64):
        monkeypatch.setattr(lines, "_BLOCK", block)
        assert [line for _, line in _rows(Source([path], tmp_path))] == rows


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [b"", b" ", b"\t\r", b"{}", b" {}", b'{"a": "b"} ', b"\xe2\x80\xa8", b"x"]
            ),
            st.sampled_from([b"\n", b"\r\n"]),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.integers(1, 9),
)
def test_the_index_equals_a_plain_reading(tmp_path_factory, rows, closed, block):
    content = b"".join(text + end for text, end in rows) + (b"" if closed else b"last")
    expected = [
        (number, text.removesuffix(b"\r"))
        for number, text in enumerate(content.split(b"\n"), 1)
        if text.strip(b" \t\r")
    ]
    path = tmp_path_factory.mktemp("plain") / "a.jsonl"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_BLOCK", block)
        if expected:
            assert _rows(Source([path], path.parent)) == expected
        else:
            with pytest.raises(RunError, match="at least one record"):
                Source([path], path.parent)


def _read(source: Source, results) -> None:
    results.put([source[i] for i in range(len(source))])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_processes_may_read_a_source(tmp_path, start):
    source = _source(tmp_path, b"".join(b'{"n": %d}\n' % i for i in range(20)))
    expected = [source[i] for i in range(20)]
    context = multiprocessing.get_context(start)
    results = context.Queue()
    children = [context.Process(target=_read, args=(source, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert [results.get(timeout=60) for _ in children] == [expected, expected]
    for child in children:
        child.join(30)


def test_a_file_that_becomes_shorter_is_one_clear_line(tmp_path):
    source = _source(tmp_path, b'{"a":1}\n{"a":2}\n')
    os.truncate(tmp_path / "a.jsonl", 10)
    with pytest.raises(RunError, match=r"a\.jsonl: became shorter while it was read"):
        source[1]


def test_several_files_are_one_sequence(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text("1\n\n2\n")
    second.write_text("3\n")
    source = Source([first, second], tmp_path / "cache")
    assert len(source) == 3
    assert [source[i][0] for i in range(3)] == [
        Address(str(first), 1),
        Address(str(first), 3),
        Address(str(second), 1),
    ]
    assert str(source[1][0]) == f"{first}:3"
    with pytest.raises(IndexError):
        source[3]


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t\r\n  "])
def test_a_file_without_records_is_one_clear_line(tmp_path, content):
    with pytest.raises(RunError, match=r"a\.jsonl: .*at least one record"):
        _source(tmp_path, content)


def test_missing_unreadable_and_foreign_files(tmp_path):
    with pytest.raises(RunError, match=r"no\.jsonl: cannot be read: No such file"):
        Source([tmp_path / "no.jsonl"], tmp_path)
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(RunError, match=r"d\.jsonl: cannot be read"):
        Source([tmp_path / "d.jsonl"], tmp_path)
    with pytest.raises(UserError, match=r"t\.csv: format '\.csv' is not supported.*\.jsonl"):
        _source(tmp_path, b"a,b\n", "t.csv")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_one_clear_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    path.chmod(0)
    with pytest.raises(RunError, match="Permission denied"):
        Source([path], tmp_path)


def test_expand_sorts_globs_keeps_pattern_order_and_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ["b.jsonl", "a.jsonl", "[1].jsonl", "1.jsonl", "deep/x.jsonl"]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}")
    found, missing = expand(["deep/*", "?.jsonl", "a.jsonl", "none*", "deep"])
    assert [str(file) for file in found] == ["deep/x.jsonl", "1.jsonl", "a.jsonl", "b.jsonl"]
    assert missing == ["none*", "deep"]
    assert expand(["[1].jsonl"]) == ([Path("[1].jsonl")], [])
    assert expand(["[2].jsonl"]) == ([], ["[2].jsonl"])


def test_digest_follows_content_and_is_remembered(tmp_path, monkeypatch):
    cache, path, copy = tmp_path / "cache", tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text("one\n")
    copy.write_text("one\n")
    assert known_digest([path], cache) is None
    value = digest([path], cache)
    assert known_digest([path], cache) == value == digest([copy], cache)

    def fail(*_):
        raise AssertionError("the content was read again")

    monkeypatch.setattr(files.hashlib, "file_digest", fail)
    assert digest([path], cache) == value
    monkeypatch.undo()
    path.write_text("two, longer\n")
    assert known_digest([path], cache) is None
    assert digest([path], cache) != value


def test_digest_tells_files_apart_and_their_order(tmp_path):
    a, b, both = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "ab.jsonl"
    a.write_text("1\n")
    b.write_text("2\n")
    both.write_text("1\n2\n")
    cache = tmp_path / "cache"
    values = {digest(group, cache) for group in ([a, b], [b, a], [both], [a])}
    assert len(values) == 4


def test_a_broken_digest_entry_is_made_again(tmp_path):
    cache, path = tmp_path / "cache", tmp_path / "a.jsonl"
    path.write_text("one\n")
    value = digest([path], cache)
    (entry,) = (cache / "digests").iterdir()
    entry.write_text('{"sha256": "half')
    assert known_digest([path], cache) is None
    assert digest([path], cache) == value
