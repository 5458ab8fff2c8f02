"""Checkpoints damaged on disk, and disks that take no more: what the command does and says.

`leave` ends runs in the middle; `damaged` damages what they saved and gives the same command again.
"""

import io
import json
import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from plan_runs import Watch, arguments, final_weights, lay_out, plan, rows
from save_cases import flip

from curriculum import store
from curriculum.cli import main as command
from curriculum.engine.distributed import World
from curriculum.engine.saves import Saves
from curriculum.tracking.journal import Journal

# phases of 6, 2 and 2 steps, saved after 2, 4, 6, 8 and 10
SHORT = [
    *(
        f"plan.phases.{name}.max_steps={n}"
        for name, n in (("words", 6), ("turns", 2), ("pairs", 2))
    ),
    *("checkpoint.every_steps=2", "checkpoint.keep_last=9"),
]
KILLED_AT = 6  # before the save that is due then: the newest checkpoint is that of step 4


def truncated(step: Path) -> None:
    shard = step / "state" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])


def marker_alone(step: Path) -> None:
    for path in step.iterdir():
        if path.name != "COMMITTED":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def other_schema(step: Path) -> None:
    meta = json.loads((step / "meta.json").read_text())
    (step / "meta.json").write_text(json.dumps(meta | {"schema": 1}))


def other_model(step: Path) -> None:
    """A whole checkpoint that claims to be of this phase, but holds a wider model."""
    temporary, meta = step.with_name(".forged.tmp"), json.loads((step / "meta.json").read_text())
    shutil.copytree(step.parents[2] / "wide" / "checkpoints" / step.name, temporary)
    (temporary / "COMMITTED").unlink()
    del meta["schema"], meta["files"]
    store.commit(temporary, step, meta)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated shard": truncated,
    "no index": lambda step: (step / "state" / ".metadata").unlink(),
    "marker alone": marker_alone,
    "no marker": lambda step: (step / "COMMITTED").unlink(),
    "flipped bit": lambda step: flip(step / "state" / "__0_0.distcp"),
    "other schema": other_schema,
    "other model": other_model,
}
# seen by sizes, by contents, and by loading it; what else sizes tell is shown without runs
MAIN = ("marker alone", "flipped bit", "other model")
SELDOM = tuple(name for name in DAMAGE if name not in MAIN)


def leave(ranks: World, root: Path, damage: Sequence[str]) -> None:
    """A run ended in its sixth step, once whole and once for each damage to its newest save."""
    lay_out(root)
    for run, more in (("wide", ["model.config.intermediate_size=56"]), ("left", [])):
        checked = plan(root, run, *SHORT, *more)
        assert not Watch(KILLED_AT).run(checked, ranks)
    for name in damage:
        # the copy is the same run, so it has to believe that it always lay there
        there = root / name.replace(" ", "-")
        shutil.copytree(root / "left", there)


def damaged(root: Path, damage: Sequence[str]) -> dict[str, Any]:
    found = {"sound": again(root, "left")}
    for name in damage:
        there = name.replace(" ", "-")
        for step in (root / there / "checkpoints").iterdir():
            meta = json.loads((step / "meta.json").read_text())
            (step / "meta.json").write_text(json.dumps(meta | {"run": str(root / there)}))
        DAMAGE[name](root / there / "checkpoints" / "step_4")
        found[name] = again(root, there)
    return found


def disks(root: Path) -> dict[str, Any]:
    return {
        "full disk": full_disk(root),
        "read-only": read_only(root),
        "filled up": filled_up(root),
    }


def again(root: Path, run: str, *overrides: str) -> dict[str, Any]:
    """What the command answers, and what it leaves."""
    words = ["run", "--config-dir", str(root), *arguments(root, run, *SHORT, *overrides)]
    said, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(said)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            code = command(words)
    finally:
        logging.getLogger().removeHandler(handler)
    directory = root / run
    done = (directory / "final" / "model.safetensors").exists()
    checked = plan(root, run, *SHORT, *overrides)
    return {
        "code": code,
        "lines": said.getvalue().splitlines(),
        "rows": rows(checked) if done else None,
        "weights": final_weights(checked) if done else None,
        "saved": sorted(path.name for path in (directory / "checkpoints").iterdir()),
    }


@contextmanager
def small_disk(directory: Path, size: str) -> Any:
    """A file system of its own; yields False where this user cannot mount one."""
    directory.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(directory)], check=True)


def full_disk(root: Path) -> dict[str, Any] | None:
    """Room for one checkpoint, not for two."""
    with small_disk(root / "full" / "checkpoints", "350k") as mounted:
        return again(root, "full") if mounted else None


def filled_up(root: Path) -> dict[str, Any] | None:
    """The same, but seen only while writing, as if another program had taken the room."""
    with small_disk(root / "filled" / "checkpoints", "350k") as mounted:
        size = Saves._size
        Saves._size = lambda self, state: 0  # type: ignore[method-assign]
        try:
            return again(root, "filled") if mounted else None
        finally:
            Saves._size = size  # type: ignore[method-assign]


def read_only(root: Path) -> dict[str, Any] | None:
    """A disk that turns read-only after the third step."""
    wrote = Journal.step

    def step(journal: Journal, row: Any, *rest: Any) -> None:
        wrote(journal, row, *rest)
        if row.step == 3:
            while not (root / "locked" / "checkpoints" / "step_2" / "COMMITTED").exists():
                time.sleep(0.01)  # what is being written would keep the mount busy
            options = ["mount", "-o", "remount,ro", str(root / "locked" / "checkpoints")]
            subprocess.run(options, check=True)

    with small_disk(root / "locked" / "checkpoints", "9m") as mounted:
        Journal.step = step  # type: ignore[method-assign]
        try:
            return again(root, "locked") if mounted else None
        finally:
            Journal.step = wrote  # type: ignore[method-assign]
