"""Several sets at once, in processes: the same bytes, no more work than needed, nothing lost."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data_builders import byte_tokenizer, config_for, write_jsonl

from curriculum.data import preparation
from curriculum.data.order import permutation
from curriculum.data.windows import Wanted, WindowSet, prepare, prepare_all
from curriculum.errors import RunError, UserError

TOKENIZER = byte_tokenizer()


def _texts(path: Path, count: int, label: str = "x") -> Path:
    return write_jsonl(path, [{"text": f"{label}{i:04d}" + "y" * (i % 13)} for i in range(count)])


def _bytes(prepared: WindowSet) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.directory.glob("*.arrow")}


def _records(prepared: WindowSet) -> list[int]:
    return [r for i in range(len(prepared)) for r in prepared[i].record_ids.tolist()]


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_nothing(tmp_path, workers):
    _texts(tmp_path / "train.jsonl", 120)
    made = {}
    for count in (1, workers):
        config = config_for(tmp_path, seq_len=30)
        config.cache.dir, config.data.workers = str(tmp_path / f"cache{count}"), count
        some = prepare(config, "one", "train", TOKENIZER, 20)
        made[count, "some"] = (some.manifest, _bytes(some))
        whole = prepare(config, "one", "train", TOKENIZER, None)
        made[count, "whole"] = (whole.manifest, _bytes(whole))
    assert made[1, "some"] == made[workers, "some"]
    assert made[1, "whole"] == made[workers, "whole"]
    assert len(made[1, "whole"][1]) == 12


def _two_phases(root: Path, workers: int):
    config = config_for(
        root, seq_len=30, sources=[str(root / "a.jsonl")], heldout=[str(root / "h.jsonl")]
    )
    one = config.plan.phases["one"]
    two = config_for(root, seq_len=30, sources=[str(root / "b.jsonl")], heldout=one.data.heldout)
    config.plan.phases["two"] = two.plan.phases["one"]
    config.data.workers = workers
    return config


@pytest.mark.parametrize("workers", [1, 2])
def test_several_sets_at_once_equal_each_alone(tmp_path, workers):
    for name, count in {"a": 60, "b": 45, "h": 15}.items():
        _texts(tmp_path / f"{name}.jsonl", count, name)
    config = _two_phases(tmp_path, workers)
    wanted = [Wanted("one", "train", 15), Wanted("two", "train"), Wanted("one", "heldout"),
              Wanted("two", "heldout")]  # fmt: skip
    together = [(one.manifest, _bytes(one)) for one in prepare_all(config, wanted, TOKENIZER)]
    assert together[2] == together[3]  # one set of held-out windows
    config.cache.dir, config.data.workers = str(tmp_path / "alone"), 1
    for (manifest, files), want in zip(together, wanted, strict=True):
        alone = prepare(config, want.phase, want.split, TOKENIZER, want.needed)
        assert (alone.manifest, _bytes(alone)) == (manifest, files)
    assert not together[0][0].exhausted and together[1][0].exhausted


def test_no_more_chunks_are_made_than_are_needed(tmp_path, monkeypatch):
    _texts(tmp_path / "train.jsonl", 400)
    made: list[int] = []
    real = preparation.ChunkMaker.make

    def make(self, index):
        made.append(index)
        return real(self, index)

    monkeypatch.setattr(preparation.ChunkMaker, "make", make)
    config = config_for(tmp_path, seq_len=30)
    prepared = prepare(config, "one", "train", TOKENIZER, 30)
    assert made == list(range(len(prepared.manifest.chunks)))
    *before, last = (chunk.windows for chunk in prepared.manifest.chunks)
    assert sum(before) < 30 <= sum(before) + last


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_bad_record_in_order_is_the_one_that_is_named(tmp_path, workers):
    rows = [{"text": "abc"} for _ in range(100)]
    order = permutation(100, 7, "one")
    rows[order[25]], rows[order[77]] = {"txt": 1}, {"txt": 2}
    file = write_jsonl(tmp_path / "train.jsonl", rows)
    config = config_for(tmp_path, seq_len=30)
    config.data.workers = workers
    with pytest.raises(RunError, match=rf"1 record.*\n{file}:{order[25] + 1}: text"):
        prepare(config, "one", "train", TOKENIZER, None)


class TestWeights:
    def _config(self, root: Path, rule: str = "stop"):
        _texts(root / "a.jsonl", 90, "a")
        _texts(root / "b1.jsonl", 20, "b")
        _texts(root / "b2.jsonl", 10, "b")
        sources = [
            {"path": str(root / "a.jsonl"), "weight": 3.0},
            {"path": str(root / "b?.jsonl"), "weight": 1.0},
        ]
        return config_for(root, sources=sources, packing="none", on_exhausted=rule)

    def test_stop(self, tmp_path):
        records = _records(prepare(self._config(tmp_path), "one", "train", TOKENIZER, None))
        assert sorted(records) == list(range(120))  # 90 / 3 = 30 / 1: both end at once

    def test_repeat_and_another_weight_make_other_sets(self, tmp_path):
        config = self._config(tmp_path, "repeat")
        first = prepare(config, "one", "train", TOKENIZER, None)
        config.plan.phases["one"].data.sources[1].weight = 2.0
        second = prepare(config, "one", "train", TOKENIZER, None)
        assert first.directory != second.directory
        counts = np.bincount(_records(second), minlength=120)
        assert (counts[:90] == 1).all() and (counts[90:] == 2).all()  # 90 / 3 x 2 = 60

    def test_a_file_of_two_weighted_sources_and_a_missing_weight_are_refused(self, tmp_path):
        config = self._config(tmp_path)
        config.plan.phases["one"].data.sources[0].path = str(tmp_path / "b1.jsonl")
        with pytest.raises(UserError, match=r"two weighted sources name .*b1\.jsonl"):
            prepare(config, "one", "train", TOKENIZER, None)
        with pytest.raises(UserError, match=r"x\.jsonl.* has no weight while others have one"):
            config_for(tmp_path, sources=["x.jsonl", {"path": "y", "weight": 1.0}])


KILLED = """
import os, sys, time
sys.path[:0] = [{tests!r}]
from data_builders import byte_tokenizer, config_for
from pathlib import Path
from curriculum.data import preparation
from curriculum.data.windows import prepare

real = preparation.ChunkMaker.make
def make(self, index):
    print(os.getpid(), flush=True)
    time.sleep(0.05)
    return real(self, index)
preparation.ChunkMaker.make = make
config = config_for(Path({root!r}), seq_len=30)
config.data.workers = 2
prepare(config, "one", "train", byte_tokenizer(), None)
"""


def test_workers_die_with_a_killed_parent_and_what_they_made_is_continued(tmp_path):
    _texts(tmp_path / "train.jsonl", 400)
    script = KILLED.format(tests=str(Path(__file__).parent), root=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = {int(parent.stdout.readline()) for _ in range(12)}
    parent.kill()
    assert len(workers) == 2 and parent.pid not in workers
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)
    parent.wait()
    config = config_for(tmp_path, seq_len=30)
    (directory,) = (d for d in (tmp_path / "cache" / "windows").iterdir() if len(d.name) == 32)
    begun = json.loads((directory / "manifest.json").read_text())
    assert 0 < len(begun["chunks"]) < 40
    stamps = {c["file"]: (directory / c["file"]).stat().st_mtime_ns for c in begun["chunks"]}
    resumed = prepare(config, "one", "train", TOKENIZER, None)
    assert {n: (directory / n).stat().st_mtime_ns for n in stamps} == stamps
    config.cache.dir = str(tmp_path / "other")
    assert _bytes(prepare(config, "one", "train", TOKENIZER, None)) == _bytes(resumed)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_that_is_killed_is_one_clear_line(tmp_path, monkeypatch):
    _texts(tmp_path / "train.jsonl", 100)

    def make(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(preparation.ChunkMaker, "make", make)
    monkeypatch.setattr(preparation, "get_context", lambda _: multiprocessing.get_context("fork"))
    config = config_for(tmp_path, seq_len=30)
    config.data.workers = 2
    with pytest.raises(RunError, match=r"a process that prepares data died.*data\.workers"):
        prepare(config, "one", "train", TOKENIZER, None)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_set_that_is_opened_anew_for_every_position_gives_each_record_once(tmp_path, workers):
    """Windows that do not close evenly leave nothing behind in a buffer for a restart to lose."""
    rows = [{"text": "abcdef" if i % 2 else "abcdefgh"} for i in range(57)]  # 7 and 9 with EOS
    write_jsonl(tmp_path / "train.jsonl", rows)
    config = config_for(tmp_path, seq_len=16)
    config.data.workers = workers
    seen: list[int] = []
    position = 0
    while True:
        windows = prepare(config, "one", "train", TOKENIZER, position + 1)
        if position == len(windows):
            break
        window = windows[position]
        assert sum(window.seq_lens) == len(window.input_ids) <= 16
        seen += window.record_ids.tolist()
        position += 1
    assert sorted(seen) == list(range(57))


def test_a_record_of_many_megabytes_is_bad_by_its_size_and_not_read(tmp_path):
    rows = [{"text": "a" * 20}, {"text": "b" * 20_000_000}, {"text": "c" * 20}]
    file = write_jsonl(tmp_path / "train.jsonl", rows)
    config = config_for(tmp_path, seq_len=30)
    config.data.max_record_bytes = 1_000_000
    message = rf"{file}:2: the record has 20000012 bytes, data\.max_record_bytes=1000000; remedy"
    with pytest.raises(RunError, match=message):
        prepare(config, "one", "train", TOKENIZER, None)
    config.plan.phases["one"].data.on_bad_record = "skip"
    prepared = prepare(config, "one", "train", TOKENIZER, None)
    assert sorted(_records(prepared)) == [0, 2]
    assert prepared.drops == {"bad record: more than data.max_record_bytes=1000000": 1}


def test_a_chunk_is_as_many_records_as_fill_its_windows(tmp_path):
    """Texts of 5 to 25 tokens, 15 on average: 16 of them fill 8 windows of 30 tokens."""
    rows = [{"text": "x" * (4 + i % 21)} for i in range(21 * 20)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    config = config_for(tmp_path, seq_len=30, chunk_records=None)
    prepared = prepare(config, "one", "train", TOKENIZER, None)
    *whole, _ = prepared.manifest.chunks
    assert 14 <= prepared.manifest.chunk_records <= 18  # 8 windows x 30 tokens / 15 tokens
    assert {chunk.records for chunk in whole} == {prepared.manifest.chunk_records}
    config.cache.dir = str(tmp_path / "other")
    first = prepare(config, "one", "train", TOKENIZER, 3)
    assert first.manifest.chunks == prepared.manifest.chunks[: len(first.manifest.chunks)]
    grouped = config_for(tmp_path, seq_len=30, chunk_records=None, packing="none")
    alone = prepare(grouped, "one", "train", TOKENIZER, 17)
    assert [chunk.windows for chunk in alone.manifest.chunks] == [8, 8, 8]
