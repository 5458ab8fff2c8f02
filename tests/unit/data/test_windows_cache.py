"""Sets of windows on disk: extended, found, shared, killed, damaged."""

import errno
import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from data_builders import CHATML, LLAMA3, byte_tokenizer, config_for, write_jsonl

from curriculum.data import chunks, preparation, sources, windows
from curriculum.data.chunks import Manifest, damage, read_manifest
from curriculum.data.windows import WindowSet, find, prepare
from curriculum.errors import RunError

TOKENIZER = byte_tokenizer()
_fork = multiprocessing.get_context("fork")


def _texts(root: Path, count: int = 60) -> Path:
    return write_jsonl(root / "train.jsonl", [{"text": "x" * (1 + i % 13)} for i in range(count)])


def _config(root: Path, **options):
    return config_for(root, seq_len=30, **{"chunk_records": 10, **options})


def _bytes(prepared: WindowSet) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.directory.glob("*.arrow")}


def test_only_the_chunks_that_are_needed(tmp_path):
    _texts(tmp_path)
    prepared = prepare(_config(tmp_path), "one", "train", TOKENIZER, 1)
    assert sorted(_bytes(prepared)) == ["chunk_00000.arrow"]
    assert not prepared.exhausted and len(prepared) >= 1
    again = prepare(_config(tmp_path), "one", "train", TOKENIZER, len(prepared))
    assert len(again) == len(prepared)


def test_extension_leaves_earlier_chunks_byte_equal_and_equals_a_set_made_at_once(tmp_path):
    _texts(tmp_path)
    config = _config(tmp_path)
    short = prepare(config, "one", "train", TOKENIZER, 1)
    before = _bytes(short)
    rows = [short[i].record_ids.tolist() for i in range(len(short))]
    stamps = {file.name: file.stat().st_mtime_ns for file in short.directory.glob("*.arrow")}
    longer = prepare(config, "one", "train", TOKENIZER, len(short) + 1)
    whole = prepare(config, "one", "train", TOKENIZER, 10_000)
    assert len(short) < len(longer) < len(whole)
    assert whole.exhausted and len(_bytes(whole)) == 6
    assert {name: _bytes(whole)[name] for name in before} == before
    for name, stamp in stamps.items():
        assert (whole.directory / name).stat().st_mtime_ns == stamp
    assert [whole[i].record_ids.tolist() for i in range(len(short))] == rows
    assert short.exhausted is False  # a set that was handed out does not change
    config.cache.dir = str(tmp_path / "other")
    assert _bytes(prepare(config, "one", "train", TOKENIZER, None)) == _bytes(whole)


def test_a_short_source_is_returned_as_it_is(tmp_path):
    _texts(tmp_path, 3)
    prepared = prepare(_config(tmp_path), "one", "train", TOKENIZER, 1000)
    assert prepared.exhausted and 0 < len(prepared) < 1000


def test_any_change_makes_a_new_set(tmp_path):
    write_jsonl(
        tmp_path / "train.jsonl", [{"prompt": "p", "completion": "c" * i} for i in range(1, 9)]
    )
    base = {"task": "prompt_completion", "seq_len": 90}
    variants = [
        ({}, TOKENIZER),
        ({"seq_len": 91}, TOKENIZER),
        ({"packing": "none"}, TOKENIZER),
        ({"seed": 8}, TOKENIZER),
        ({"phase": "two"}, TOKENIZER),
        ({"chunk_records": 4}, TOKENIZER),
        ({"on_over_long": "drop"}, TOKENIZER),
        ({"on_bad_record": "skip"}, TOKENIZER),
        ({"on_unstable": "split"}, TOKENIZER),
        ({"loss_on": "all"}, TOKENIZER),
        ({}, byte_tokenizer(LLAMA3)),
        ({}, byte_tokenizer(CHATML, eos="<|im_end|>")),
    ]
    keys = set()
    for options, tokenizer in variants:
        config = config_for(tmp_path, **{**base, **options})
        phase = options.get("phase", "one")
        keys.add(prepare(config, phase, "train", tokenizer, None).manifest.key)
    assert len(keys) == len(variants)
    rows = (tmp_path / "train.jsonl").read_text()
    (tmp_path / "train.jsonl").write_text(rows.replace("ccc", "ccd"))
    changed = prepare(config_for(tmp_path, **base), "one", "train", TOKENIZER, None)
    assert changed.manifest.key not in keys


def test_what_does_not_matter_makes_no_new_set(tmp_path):
    _texts(tmp_path)
    one = prepare(_config(tmp_path), "one", "train", TOKENIZER, 1)
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes((tmp_path / "train.jsonl").read_bytes())
    config = _config(tmp_path, sources=[str(copy)], on_short="repeat")
    config.plan.phases["one"].steps = 99
    config.plan.phases["one"].batch_size = 5
    other = prepare(config, "one", "train", byte_tokenizer(LLAMA3), 1)  # text needs no template
    assert other.directory == one.directory


def test_the_manifest_says_what_the_set_is_made_of(tmp_path):
    file = _texts(tmp_path)
    prepared = prepare(_config(tmp_path), "one", "train", TOKENIZER, None)
    values = json.loads((prepared.directory / "manifest.json").read_text())
    assert values["schema_version"] == chunks.SCHEMA_VERSION
    assert values["inputs"]["source"] == sources.digest([file], tmp_path / "cache")
    assert values["inputs"]["seq_len"] == 30
    assert values["exhausted"] is True
    assert sum(chunk["records"] for chunk in values["chunks"]) == 60
    assert sum(chunk["windows"] for chunk in values["chunks"]) == len(prepared)


class TestFind:
    @pytest.fixture
    def config(self, tmp_path):
        _texts(tmp_path)
        TOKENIZER.save_pretrained(tmp_path / "tok")
        return _config(tmp_path, model={"tokenizer": str(tmp_path / "tok")})

    def test_nothing_before_and_the_same_set_after(self, config):
        assert find(config, "one", "train") is None
        prepared = prepare(config, "one", "train", TOKENIZER, 1)
        found = find(config, "one", "train")
        assert found is not None and found.manifest == prepared.manifest
        assert found.forward_tokens(2) == prepared.forward_tokens(2)
        assert find(config, "one", "heldout") is None
        prepare(config, "one", "train", TOKENIZER, None)
        found = find(config, "one", "train")
        assert found is not None and found.exhausted

    def test_no_content_is_read(self, config, monkeypatch):
        prepare(config, "one", "train", TOKENIZER, 1)

        def fail(*_args, **_options):
            raise AssertionError("content was read")

        monkeypatch.setattr(sources.files.hashlib, "file_digest", fail)
        monkeypatch.setattr(windows, "Source", fail)
        monkeypatch.setattr(windows, "tokenizer_digest", fail)
        assert find(config, "one", "train") is not None

    @pytest.mark.parametrize(
        "change",
        [
            lambda root, config: (root / "train.jsonl").write_text('{"text": "new"}\n'),
            lambda root, config: os.utime(root / "train.jsonl", ns=(1, 1)),
            lambda root, config: (root / "train.jsonl").unlink(),
            lambda root, config: os.utime(root / "tok" / "tokenizer.json", ns=(1, 1)),
            lambda root, config: setattr(config.model, "chat_template", LLAMA3),
            lambda root, config: setattr(config.plan.phases["one"], "seq_len", 31),
            lambda root, config: setattr(config, "seed", 8),
            lambda root, config: [file.unlink() for file in root.glob("cache/**/*.arrow")],
            lambda root, config: [os.truncate(file, 100) for file in root.glob("cache/**/*.arrow")],
        ],
    )
    def test_nothing_once_anything_changed(self, tmp_path, config, change):
        prepare(config, "one", "train", TOKENIZER, 1)
        change(tmp_path, config)
        assert find(config, "one", "train") is None


def _die_at_sync(config, count: int, ready) -> None:
    """Prepare everything, but stop in front of the given fsync and wait to be killed."""
    real, calls = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            ready.set()
            time.sleep(60)
        real(descriptor)

    os.fsync = fsync
    prepare(config, "one", "train", TOKENIZER, None)


# A chunk takes four: its file, the directory, the manifest, the directory again.
@pytest.mark.parametrize(
    ("syncs", "finished"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (7, 1), (22, 5), (24, 6)]
)
def test_a_killed_preparation_leaves_nothing_that_looks_finished(tmp_path, syncs, finished):
    config = _config(tmp_path)
    sources.digest([_texts(tmp_path)], config.cache.dir)  # so that only chunks are written below
    ready = _fork.Event()
    child = _fork.Process(target=_die_at_sync, args=(config, syncs, ready))
    child.start()
    assert ready.wait(30)
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert child.exitcode == -signal.SIGKILL

    (directory,) = (tmp_path / "cache" / "windows").iterdir()
    manifest = read_manifest(directory, directory.name)
    assert (len(manifest.chunks) if manifest else 0) == finished
    if manifest:
        assert damage(directory, manifest) is None
        assert manifest.exhausted is (finished == 6)
    resumed = prepare(config, "one", "train", TOKENIZER, None)
    assert resumed.exhausted
    assert not list(directory.glob("*.tmp"))
    config.cache.dir = str(tmp_path / "other")
    assert _bytes(prepare(config, "one", "train", TOKENIZER, None)) == _bytes(resumed)


def _prepare_and_record(config, start, log: Path, results) -> None:
    real = preparation.write_chunk

    def write_chunk(directory, index, *rest):
        with log.open("a") as handle:
            handle.write(f"{index}\n")
        return real(directory, index, *rest)

    preparation.write_chunk = write_chunk
    start.wait()
    prepared = prepare(config, "one", "train", TOKENIZER, None)
    results.put([prepared[i].record_ids.tolist() for i in range(len(prepared))])


def test_processes_that_prepare_at_once_do_it_once(tmp_path):
    _texts(tmp_path)
    config, start, results = _config(tmp_path), _fork.Barrier(3), _fork.Queue()
    log = tmp_path / "log"
    children = [
        _fork.Process(target=_prepare_and_record, args=(config, start, log, results))
        for _ in range(3)
    ]
    for child in children:
        child.start()
    seen = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join(30)
        assert child.exitcode == 0
    assert seen[0] == seen[1] == seen[2]
    assert log.read_text().split() == [str(i) for i in range(6)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file, others: os.truncate(file, file.stat().st_size // 2),
        lambda file, others: os.truncate(file, file.stat().st_size - 1),
        lambda file, others: file.write_bytes(b"x" * file.stat().st_size),
        lambda file, others: file.write_bytes(b""),
        lambda file, others: file.unlink(),
        lambda file, others: file.write_bytes(others[0].read_bytes()),
    ],
)
def test_a_damaged_chunk_is_noticed_and_made_again(tmp_path, caplog, spoil):
    _texts(tmp_path)
    config = _config(tmp_path)
    prepared = prepare(config, "one", "train", TOKENIZER, None)
    config.seed = 8
    others = sorted(prepare(config, "one", "train", TOKENIZER, None).directory.glob("*.arrow"))
    config.seed = 7
    before = _bytes(prepared)
    spoil(prepared.directory / "chunk_00000.arrow", others)
    again = prepare(config, "one", "train", TOKENIZER, 1)
    assert "chunk_00000.arrow" in caplog.text and "preparing this set again" in caplog.text
    assert _bytes(again)["chunk_00000.arrow"] == before["chunk_00000.arrow"]
    assert damage(again.directory, again.manifest) is None


def test_a_chunk_with_another_number_of_windows_is_refused(tmp_path):
    _texts(tmp_path)
    prepared = prepare(_config(tmp_path), "one", "train", TOKENIZER, 1)
    values = prepared.manifest.chunks[0].__dict__ | {"windows": len(prepared) + 1}
    listed = (chunks.ChunkInfo(**values),)
    wrong = Manifest(chunks.SCHEMA_VERSION, prepared.manifest.key, {}, 10, listed, False)
    cause = damage(prepared.directory, wrong)
    assert cause is not None
    assert f"holds {len(prepared)} windows, but the manifest says {len(prepared) + 1}" in cause


def test_a_chunk_of_another_set_is_refused(tmp_path):
    _texts(tmp_path)
    prepared = prepare(_config(tmp_path), "one", "train", TOKENIZER, 1)
    foreign = replace(prepared.manifest, key="another")
    assert "belongs to another set" in (damage(prepared.directory, foreign) or "")


def test_a_file_damaged_after_it_was_handed_out_is_one_clear_line(tmp_path):
    _texts(tmp_path)
    prepared = prepare(_config(tmp_path), "one", "train", TOKENIZER, 1)
    os.truncate(prepared.directory / "chunk_00000.arrow", 300)
    with pytest.raises(RunError, match=r"chunk_00000\.arrow: truncated or not an Arrow file"):
        prepared[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"chunks": [1]}', '{"chunks": []}'])
def test_an_unreadable_manifest_counts_as_none(tmp_path, text):
    _texts(tmp_path)
    config = _config(tmp_path)
    prepared = prepare(config, "one", "train", TOKENIZER, 1)
    (prepared.directory / "manifest.json").write_text(text)
    assert read_manifest(prepared.directory, prepared.manifest.key) is None
    assert prepare(config, "one", "train", TOKENIZER, 1).manifest == prepared.manifest


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    file = _texts(tmp_path)
    real = preparation.build

    def build(*args):
        with file.open("a") as handle:
            handle.write('{"text": "late"}\n')
        return real(*args)

    monkeypatch.setattr(preparation, "build", build)
    with pytest.raises(RunError, match="train source changed while it was read"):
        prepare(_config(tmp_path), "one", "train", TOKENIZER, None)


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path):
    _texts(tmp_path)
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        prepare(_config(tmp_path), "one", "train", TOKENIZER, 1)


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path, monkeypatch):
    _texts(tmp_path)
    config = _config(tmp_path)
    prepared = prepare(config, "one", "train", TOKENIZER, 1)
    before = sorted(file.name for file in prepared.directory.iterdir())

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"chunk_00001\.arrow: cannot be written: No space left"):
        prepare(config, "one", "train", TOKENIZER, None)
    assert sorted(file.name for file in prepared.directory.iterdir()) == before
