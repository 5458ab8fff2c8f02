"""A checkpoint directory is whole, or known not to be; nothing in between is ever taken."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from curriculum import store
from curriculum.errors import RunError


def make(directory: Path, **files: bytes) -> Path:
    """A committed checkpoint with two shards and an index."""
    temporary = directory.with_name(f".{directory.name}.tmp")
    (temporary / "state").mkdir(parents=True)
    contents = {".metadata": b"index", "__0_0.distcp": b"a" * 100, "__1_0.distcp": b"b" * 60}
    for name, content in (contents | files).items():
        (temporary / "state" / name).write_bytes(content)
    store.commit(temporary, directory, {"step": 7, "phase": "p", "phase_step": 7, "key": "k"})
    return directory


def test_meta_lists_sizes_and_checksums(tmp_path: Path) -> None:
    directory = make(tmp_path / "step_7")
    meta = json.loads((directory / "meta.json").read_text())
    assert meta["files"] == {
        "state/.metadata": {"bytes": 5, "crc32": zlib.crc32(b"index")},
        "state/__0_0.distcp": {"bytes": 100, "crc32": zlib.crc32(b"a" * 100)},
        "state/__1_0.distcp": {"bytes": 60, "crc32": zlib.crc32(b"b" * 60)},
    }
    assert store.damage(directory) is None
    assert store.corruption(directory) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step_7"]


def truncated(directory: Path) -> None:
    (directory / "state/__1_0.distcp").write_bytes(b"b" * 30)


def without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def marker_alone(directory: Path) -> None:
    shutil.rmtree(directory / "state")
    (directory / "meta.json").unlink()


def index_changed(directory: Path) -> None:
    (directory / "state/.metadata").write_bytes(b"INDEX")


def meta_with(**values: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "meta.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def meta_torn(directory: Path) -> None:
    path = directory / "meta.json"
    path.write_text(path.read_text()[:40])


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (truncated, "state/__1_0.distcp has 30 bytes instead of 60"),
        (without("state/__0_0.distcp"), "state/__0_0.distcp is missing"),
        (without("state/.metadata"), "state/.metadata is missing"),
        (without("meta.json"), "meta.json: cannot be read (No such file or directory)"),
        (marker_alone, "meta.json: cannot be read (No such file or directory)"),
        (index_changed, "state/.metadata has changed since it was written"),
        (meta_torn, "meta.json: cannot be read (not a JSON object)"),
        (meta_with(schema=1), "meta.json: schema 1, this version reads 2"),
        (meta_with(schema=99), "schema 99, this version reads 2"),
        (meta_with(files={}), "lists no state/.metadata"),
        (meta_with(files=None), "meta.json is not that of a checkpoint"),
    ],
)
def test_damage_is_named(tmp_path: Path, hurt: Callable[[Path], None], said: str) -> None:
    directory = make(tmp_path / "step_7")
    hurt(directory)
    reason = store.damage(directory)
    assert reason is not None and said in reason
    assert "\n" not in reason
    assert store.corruption(directory) == reason
    assert store.finished(tmp_path, "step_7") is None


def test_a_flipped_bit_is_found_by_the_part_that_holds_it(tmp_path: Path) -> None:
    directory = make(tmp_path / "step_7")
    path = directory / "state/__1_0.distcp"
    path.write_bytes(b"b" * 59 + b"c")
    assert store.damage(directory) is None  # sizes are as they were
    assert store.corruption(directory) == "state/__1_0.distcp has changed since it was written"
    found = [store.corruption(directory, part, 3) for part in range(3)]
    assert [reason is not None for reason in found] == [False, False, True]


def test_only_committed_directories_count_in_the_order_of_numbers(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        make(tmp_path / f"step_{step}")
    (tmp_path / "step_11" / "state").mkdir(parents=True)
    shutil.copytree(tmp_path / "step_10", tmp_path / ".step_12.tmp")
    shutil.copytree(tmp_path / "step_10", tmp_path / "step_13")
    (tmp_path / "step_13" / "COMMITTED").unlink()
    found = [path.name for path in store.step_directories(tmp_path)]
    assert found == ["step_9", "step_10", "step_100"]
    store.clear_unfinished(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["step_10", "step_100", "step_9"]


def test_the_schema_error_names_the_remedy(tmp_path: Path) -> None:
    directory = make(tmp_path / "step_7")
    meta_with(schema=1)(directory)
    with pytest.raises(RunError, match=r"schema 1, this version reads 2; .*delete"):
        store.read_meta(directory)


def test_a_commit_replaces_a_damaged_one_of_the_same_step(tmp_path: Path) -> None:
    directory = make(tmp_path / "step_7")
    truncated(directory)
    make(directory, **{"__1_0.distcp": b"new"})
    assert store.corruption(directory) is None
    assert (directory / "state/__1_0.distcp").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["step_7"]


@pytest.mark.parametrize("hurt", [truncated, without("COMMITTED")])
def test_the_store_replaces_what_is_damaged(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    checkpoint, shelf = make(tmp_path / "run" / "step_7"), tmp_path / "store"
    first = store.keep(shelf, "key", checkpoint, {"why": 1})
    assert store.finished(shelf, "key") == first
    path = first / "state/__1_0.distcp"
    path.unlink()  # the run's own copy is the same file
    path.write_bytes(b"b" * 60)
    hurt(first)
    assert store.finished(shelf, "key") is None
    again = store.keep(shelf, "key", checkpoint, {"why": 1})
    assert store.corruption(again) is None
    assert [entry.name for entry in shelf.iterdir()] == ["key"]


def test_a_store_that_cannot_be_written_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, shelf = make(tmp_path / "run" / "step_7"), tmp_path / "store"
    shelf.mkdir()

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(store.directories, "_link_or_copy", full)
    with pytest.raises(RunError, match=r"store\.dir=.*: No space left on device; make room"):
        store.keep(shelf, "key", checkpoint, {"why": 1})
    assert list(shelf.iterdir()) == []
