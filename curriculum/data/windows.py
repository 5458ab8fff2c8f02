"""The windows of a phase: prepared once, found again, extended when more are needed.

A set lies in `cache.dir/windows/<key>/`. The key is a hash of all that decides its content: the
bytes of the source, tokenizer, template, geometry and policies. So any change makes a new set and
nothing stale is used.

Training records are permuted by (seed, phase); every `data.chunk_records` of them are rendered,
packed and shuffled as one chunk. A set grows chunk by chunk as far as a phase needs, and growing
changes no earlier chunk. Held-out records keep their order and are prepared whole.

`find` looks a set up by the stats of the files involved, which `prepare` has noted: no content is
read, no tokenizer loaded.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from curriculum.config import Config, Phase
from curriculum.data.chunks import (
    SCHEMA_VERSION,
    Manifest,
    Window,
    damage,
    read_manifest,
    remove_manifest,
    write_chunk,
    write_manifest,
)
from curriculum.data.examples import Item, build
from curriculum.data.order import permutation
from curriculum.data.pack import pack
from curriculum.data.records import is_chat
from curriculum.data.sources import Source, digest, expand, stats
from curriculum.data.tokenizer import require_chat_template, tokenizer_digest, tokenizer_files
from curriculum.data.window_set import WindowSet, total
from curriculum.errors import RunError, UserError
from curriculum.files import locked, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Split", "Window", "WindowSet", "find", "prepare"]

Split = Literal["train", "heldout"]

_log = logging.getLogger(__name__)
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class _Request:
    """What is to be prepared: the windows of one split of a phase, from files seen at `stats`."""

    config: Config
    phase: str
    split: Split
    files: list[Path]
    stats: list[list[str | int]]
    tokenizer: "PreTrainedTokenizerFast"
    needed: int | None

    @property
    def settings(self) -> Phase:
        return self.config.plan.phases[self.phase]


class NoWindows(RunError):
    """Every record of a source was left out; the message says why."""


def prepare(
    config: Config,
    phase: str,
    split: Split,
    tokenizer: "PreTrainedTokenizerFast",
    needed: int | None,
) -> WindowSet:
    """At least `needed` windows of a phase (None: all), or all there are if the source has fewer.

    `config` is scaled. Of several processes that ask at once, one prepares and the others wait.
    Raises `UserError` or `RunError` in one line: missing files, no chat template, bad records, a
    source that yields no window.
    """
    settings = config.plan.phases[phase]
    files = _files(config, phase, split)
    _check_settings(phase, settings, tokenizer)
    if split == "heldout":
        needed = None
    # Noted before contents are read, so that a later change of a file can only miss the pointer.
    seen, pointer = stats(files), _pointer(config, phase, split, files)
    inputs = _inputs(config, phase, split) | {
        "source": digest(files, config.cache.dir),
        "tokenizer": tokenizer_digest(tokenizer),
        "chat_template": tokenizer.chat_template if is_chat(settings.task) else None,
    }
    key = _hash(inputs)
    directory = Path(config.cache.dir) / "windows" / key
    manifest = read_manifest(directory, key)
    if manifest is None or not _enough(manifest, needed) or damage(directory, manifest):
        with locked(directory / ".lock"):
            manifest = _checked(directory, key) or Manifest(SCHEMA_VERSION, key, inputs, (), False)
            if not _enough(manifest, needed):
                request = _Request(config, phase, split, files, seen, tokenizer, needed)
                manifest = _extend(directory, manifest, request)
                _log_counts(manifest, phase, split)
    if not manifest.windows:
        counted = total([chunk.drops for chunk in manifest.chunks])
        reasons = ", ".join(f"{reason}: {count}" for reason, count in counted.items())
        raise NoWindows(
            f"phase {phase}: no window came of the {split} source ({reasons or 'no records'}); "
            f"see plan.phases.{phase}.seq_len and .data"
        )
    _note(pointer, key)
    return WindowSet(directory, manifest, config.seed, phase)


def find(config: Config, phase: str, split: Split) -> WindowSet | None:
    """The set that `prepare` would continue, or None if nothing was prepared or a file changed.

    Reads no content of sources or tokenizer; stats only.
    """
    patterns = _patterns(config, phase, split)
    files, missing = expand(patterns)
    pointer = None if missing or not files else _pointer(config, phase, split, files)
    if pointer is None:
        return None
    try:
        key = str(json.loads(pointer.read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    directory = pointer.parent.parent / key
    manifest = read_manifest(directory, key)
    if manifest is None or any(_size(directory / c.file) != c.bytes for c in manifest.chunks):
        return None
    return WindowSet(directory, manifest, config.seed, phase)


def _patterns(config: Config, phase: str, split: Split) -> list[str]:
    data = config.plan.phases[phase].data
    return data.sources if split == "train" else data.heldout


def _files(config: Config, phase: str, split: Split) -> list[Path]:
    option = f"plan.phases.{phase}.data.{'sources' if split == 'train' else 'heldout'}"
    patterns = _patterns(config, phase, split)
    if not patterns:
        raise UserError(f"{option}: names no file; give a path, a list of paths or globs")
    files, missing = expand(patterns)
    if missing:
        raise RunError(f"{option}: no file matches {', '.join(missing)} (from {os.getcwd()})")
    return files


def _check_settings(phase: str, settings: Phase, tokenizer: "PreTrainedTokenizerFast") -> None:
    require_chat_template(phase, settings.task, tokenizer)
    if settings.task == "retrieval" and settings.retrieval is None:
        raise UserError(
            f"plan.phases.{phase}.retrieval: required by task=retrieval (temperature, documents)"
        )


def _inputs(config: Config, phase: str, split: Split) -> dict[str, Any]:
    """What decides the content of a set, apart from the bytes of source and tokenizer."""
    settings = config.plan.phases[phase]
    data = settings.data
    shared = {
        "schema_version": SCHEMA_VERSION,
        "split": split,
        "task": settings.task,
        "seq_len": settings.seq_len,
        "packed": settings.packing != "none" and settings.task != "retrieval",
        "on_bad_record": data.on_bad_record,
        "on_over_long": data.on_over_long,
        "on_unstable": data.on_unstable,
        "loss_on": data.loss_on,
        "documents": settings.retrieval.documents if settings.retrieval else None,
        "chunk_records": config.data.chunk_records,
    }
    # The held-out order depends on neither, so phases and seeds share a set.
    order = {"seed": config.seed, "phase": phase} if split == "train" else {}
    return shared | order


def _enough(manifest: Manifest, needed: int | None) -> bool:
    return manifest.exhausted or (needed is not None and manifest.windows >= needed)


def _checked(directory: Path, key: str) -> Manifest | None:
    """The manifest if its files are whole. Otherwise the set is declared not prepared."""
    for leftover in directory.glob("*.tmp"):
        leftover.unlink(missing_ok=True)
    manifest = read_manifest(directory, key)
    cause = damage(directory, manifest) if manifest else None
    if cause is None:
        return manifest
    _log.warning("%s; preparing this set again", cause)
    remove_manifest(directory)
    return None


def _extend(directory: Path, manifest: Manifest, request: _Request) -> Manifest:
    """Prepare further chunks until there are enough windows or no records; commit each one."""
    source, seed, phase = Source(request.files), request.config.seed, request.phase
    train, size = request.split == "train", request.config.data.chunk_records
    rows = permutation(len(source), seed, phase) if train else np.arange(len(source))
    shown = time.monotonic()
    while not _enough(manifest, request.needed):
        index = len(manifest.chunks)
        part = rows[index * size : (index + 1) * size].tolist()
        items, report = build(source, part, phase, request.settings, request.tokenizer)
        windows = _arranged(items, request.settings)
        if train:
            order = permutation(len(windows), seed, phase, "chunk", index)
            windows = [windows[place] for place in order]
        if stats(source.files) != request.stats:
            raise RunError(
                f"phase {phase}: a file of the {request.split} source changed while it was read; "
                "start again once it is complete"
            )
        info = write_chunk(directory, index, manifest.key, windows, len(part), report)
        read = index * size + len(part)
        manifest = replace(manifest, chunks=(*manifest.chunks, info), exhausted=read == len(source))
        write_manifest(directory, manifest)
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            _log.info(
                "phase %s: %s: %d windows of %s, %d records of %d read",
                phase, request.split, manifest.windows, request.needed or "all", read, len(source),
            )  # fmt: skip
    return manifest


def _log_counts(manifest: Manifest, phase: str, split: Split) -> None:
    """One line a reason for what was left out or changed, with where it was first seen."""
    places: dict[str, list[str]] = {}
    for chunk in manifest.chunks:
        for reason, found in chunk.dropped_at.items():
            places.setdefault(reason, []).extend(found)
    for reason, count in total([chunk.drops for chunk in manifest.chunks]).items():
        first = places[reason][0]
        _log.warning("phase %s: %s: left out: %d x %s, e.g. %s", phase, split, count, reason, first)
    for reason, count in total([chunk.cuts for chunk in manifest.chunks]).items():
        _log.info("phase %s: %s: changed: %d x %s", phase, split, count, reason)


def _arranged(items: Sequence[Item], settings: Phase) -> list[list[Item]]:
    """Examples laid into windows, windows in the order of their first example.

    That order matters for held-out data, of which probes may use the first windows only: the
    order of packing would put the longest examples there.
    """
    if settings.packing == "none" or settings.task == "retrieval":
        return [[item] for item in items]
    lengths = np.array([len(item.input_ids) for item in items], dtype=np.int64)
    bins = sorted(np.sort(indices).tolist() for indices in pack(lengths, settings.seq_len))
    return [[items[index] for index in indices] for indices in bins]


def _note(pointer: Path | None, key: str) -> None:
    """Remember which set belongs to the files as they were."""
    if pointer is not None and not pointer.is_file():
        write_json(pointer, {"key": key})


def _pointer(config: Config, phase: str, split: Split, files: Sequence[Path]) -> Path | None:
    tokenizer = tokenizer_files(config.model)
    if not tokenizer:
        return None
    involved = {
        "inputs": _inputs(config, phase, split),
        "chat_template": config.model.chat_template,
        "sources": stats(files),
        "tokenizer": stats(tokenizer),
    }
    return Path(config.cache.dir) / "windows" / "pointers" / f"{_hash(involved)}.json"


def _hash(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
