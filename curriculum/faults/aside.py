"""What a run directory held before: kept under another name, or, where it was never finished,
deleted."""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import orjson

from curriculum import store
from curriculum.errors import RunError
from curriculum.files import write_bytes, write_text
from curriculum.tracking.metrics import read_metrics


def set_aside(
    directory: Path, keys: Mapping[str, str], kept_steps: int, changed: Collection[str] = ()
) -> Path | None:
    """Move what no longer counts to `replaced_<k>/`, and copy what describes it. None if nothing
    was there.

    `keys` of the plan's phases now; `kept_steps` of its first phases are as they were. Of later
    ones, which may be of another branch, rows stay unless they are in `changed`.
    """
    old_checkpoints = [
        path
        for path in store.step_directories(directory / "checkpoints")
        if _key_of(path) not in keys.values()
    ]
    results = [
        path
        for pattern in ("probes/*", "choice_evals/*/*")
        for path in directory.glob(pattern)
        if _step_of(path) > kept_steps or kept_steps == 0
    ]
    whole = [directory / name for name in ("final", "finished.json", "report.html")]
    moved = [path for path in [*whole, *old_checkpoints, *results] if path.exists()]
    rows = read_metrics(directory / "metrics.jsonl")
    stays = {row["phase"] for row in rows} - set(changed) if changed else set()
    kept_rows = [row for row in rows if row["step"] <= kept_steps or row["phase"] in stays]
    if not moved and len(rows) == len(kept_rows):
        return None
    aside = _free(directory / "replaced")
    aside.mkdir()
    for name in ("config.yaml", "dry_run.json", "ledger.json", "metrics.jsonl", "run.json"):
        if (directory / name).is_file():
            shutil.copy2(directory / name, aside / name)
    for path in moved:
        target = aside / path.relative_to(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    if rows:
        lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in kept_rows)
        write_bytes(directory / "metrics.jsonl", lines)
    return aside


def sweep(directory: Path) -> None:
    """Delete what killed processes left half-written. Only the holder of the lock calls this."""
    for left in [*directory.rglob(".*.tmp")]:
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def start_anew(directory: Path, keep: str) -> Path | None:
    """Move all of a run directory, but the files whose names hold `keep`, to a name beside it. None
    if nothing is there. A process that is killed meanwhile leaves a note, by which the next goes on
    to the same name."""
    note = directory / ".fresh"
    names = [path for path in directory.iterdir() if keep not in path.name and path != note]
    if not note.is_file():
        if not names:
            return None
        write_text(note, _free(directory.with_name(f"{directory.name}.old")).name)
    beside = directory.with_name(note.read_text())
    try:
        beside.mkdir(exist_ok=True)
        for path in names:
            path.rename(beside / path.name)
    except OSError as error:
        raise RunError(
            f"run.fresh=true: {directory} cannot be moved to {beside}: {error.strerror}; give this "
            "run a directory of its own (run.dir=DIR)"
        ) from None
    note.unlink()
    return beside


def _key_of(checkpoint: Path) -> str | None:
    """The key of a checkpoint's phase; None if it cannot be read."""
    try:
        return store.read_meta(checkpoint).get("key")
    except RunError:
        return None


def _step_of(path: Path) -> int:
    """The step in a name such as `planning_67` or `step_20`."""
    number = path.name.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def _free(base: Path) -> Path:
    """`<base>_<k>` with the first k that is free."""
    number = 1
    while (path := base.with_name(f"{base.name}_{number}")).exists():
        number += 1
    return path
