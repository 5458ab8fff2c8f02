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

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curriculum.config import Config, Phase
from curriculum.data import choice_data, workers
from curriculum.data.choice_set import ChoiceSet
from curriculum.data.chunks import (
    SCHEMA_VERSION,
    Manifest,
    Window,
    damage,
    read_manifest,
    remove_manifest,
)
from curriculum.data.order import record_order
from curriculum.data.pointers import hashed, noted, pointer_of
from curriculum.data.preparation import ChunkMaker, Growth, Split, enough, grow
from curriculum.data.records import is_chat
from curriculum.data.sources import Source, digest, expand, stats
from curriculum.data.tokenizer import require_chat_template, tokenizer_digest
from curriculum.data.window_set import WindowSet, total
from curriculum.errors import RunError, UserError
from curriculum.files import locked, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["Split", "Wanted", "Window", "WindowSet", "find", "prepare", "prepare_all"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """At least `needed` training windows of a phase, None for all; of held-out data always all."""

    phase: str
    split: Split
    needed: int | None = None


class NoWindows(RunError):
    """Every record of a source was left out; the message says why."""


def prepare(
    config: Config,
    phase: str,
    split: Split,
    tokenizer: "PreTrainedTokenizerFast",
    needed: int | None,
) -> WindowSet | ChoiceSet:
    """`prepare_all` for one set."""
    return prepare_all(config, [Wanted(phase, split, needed)], tokenizer)[0]


def prepare_all(
    config: Config, wanted: Sequence[Wanted], tokenizer: "PreTrainedTokenizerFast"
) -> list[WindowSet | ChoiceSet]:
    """The sets that are wanted, or all there is of a source that has fewer windows.

    `config` is scaled. Of several processes that ask at once, one prepares and the others wait.
    Raises `UserError` or `RunError` in one line: missing files, no chat template, bad records, a
    source that yields no window. The sets of choice phases are packed ones (`choice_data`).
    """
    choices = {
        want: choice_data.prepare(config, want.phase, want.split, tokenizer)
        for want in wanted
        if config.plan.phases[want.phase].task == "choice"
    }
    others = [want for want in wanted if want not in choices]
    sets = iter(_prepare_records(config, others, tokenizer))
    return [choices[want] if want in choices else next(sets) for want in wanted]


def _prepare_records(
    config: Config, wanted: Sequence[Wanted], tokenizer: "PreTrainedTokenizerFast"
) -> list[WindowSet]:
    places = [_locate(config, want, tokenizer) for want in wanted]
    behind = {place.key: place for place in places if _behind(place)}
    for place in places:  # several phases may share a set of held-out windows
        if place.key in behind and _more(place.needed, behind[place.key].needed):
            behind[place.key] = place
    with ExitStack() as locks:
        for key in sorted(behind):  # in one order everywhere, so that no two wait for each other
            locks.enter_context(locked(behind[key].directory / ".lock"))
        sets = [growth for place in behind.values() if (growth := _growth(config, place))]
        if sets:
            _grow(sets, workers.count(config.data.workers))
    return [_prepared(config, place) for place in places]


@dataclass(frozen=True)
class _Place:
    """Where a wanted set lies, and what it is made of. `stats` were seen before any content."""

    want: Wanted
    needed: int | None
    files: list[list[Path]]
    stats: list[list[str | int]]
    pointer: Path | None
    inputs: dict[str, Any]
    key: str
    directory: Path
    tokenizer: "PreTrainedTokenizerFast"


def _locate(config: Config, want: Wanted, tokenizer: "PreTrainedTokenizerFast") -> _Place:
    settings = config.plan.phases[want.phase]
    files = _files(config, want.phase, want.split)
    _check_settings(want.phase, settings, tokenizer)
    flat = [file for group in files for file in group]
    seen, pointer = (
        stats(flat),
        pointer_of(config, "windows", _inputs(config, want.phase, want.split), flat),
    )
    inputs = _inputs(config, want.phase, want.split) | {
        "source": digest(flat, config.cache.dir),
        "tokenizer": tokenizer_digest(tokenizer),
        "chat_template": tokenizer.chat_template if is_chat(settings.task) else None,
        "groups": [len(group) for group in files] if settings.data.weights else None,
    }
    key = hashed(inputs)
    directory = Path(config.cache.dir) / "windows" / key
    needed = want.needed if want.split == "train" else None
    return _Place(want, needed, files, seen, pointer, inputs, key, directory, tokenizer)


def _behind(place: _Place) -> bool:
    manifest = read_manifest(place.directory, place.key)
    return (
        manifest is None
        or not enough(manifest, place.needed)
        or damage(place.directory, manifest) is not None
    )


def _more(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)


def _growth(config: Config, place: _Place) -> Growth | None:
    """What is still to be made of a set that this process has locked; None if nothing is."""
    manifest = _checked(place.directory, place.key)
    if manifest is not None and enough(manifest, place.needed):
        return None
    settings, train = config.plan.phases[place.want.phase], place.want.split == "train"
    source = Source([file for group in place.files for file in group], config.cache.dir)
    rows = np.arange(len(source))
    if train:
        each = iter(source.counts)
        counts = [sum(next(each) for _ in group) for group in place.files]
        data = settings.data
        rows = record_order(counts, data.weights, data.on_exhausted, config.seed, place.want.phase)
    maker = ChunkMaker(
        place.directory, place.key, source, rows, 0, config.data.max_record_bytes,
        place.want.phase, place.want.split, settings, config.seed, place.tokenizer,
    )  # fmt: skip
    if manifest is None:
        size = config.data.chunk_records or maker.records_of(config.data.chunk_windows)
        manifest = Manifest(SCHEMA_VERSION, place.key, place.inputs, size, (), False)
    maker = replace(maker, chunk_records=manifest.chunk_records)
    return Growth(maker, manifest, place.needed, place.stats)


def _grow(sets: Sequence[Growth], processes: int) -> None:
    before = sum(_tokens(one.manifest) for one in sets)
    began = time.monotonic()
    grow(sets, processes)
    for one in sets:
        _log_counts(one.manifest, one.maker.phase, one.maker.split)
    seconds, tokens = time.monotonic() - began, sum(_tokens(one.manifest) for one in sets) - before
    _log.info(
        "prepared %d set(s) of windows: %s tokens in %.1f s, %s a second",
        len(sets), f"{tokens:,}", seconds, f"{tokens / seconds:,.0f}",
    )  # fmt: skip


def _tokens(manifest: Manifest) -> int:
    return sum(chunk.tokens for chunk in manifest.chunks)


def _prepared(config: Config, place: _Place) -> WindowSet:
    """A finished set, noted under the files that it was made of. `NoWindows` if it is empty."""
    manifest = read_manifest(place.directory, place.key)
    if manifest is None:
        raise RunError(f"{place.directory}: was removed while it was prepared; start again")
    phase = place.want.phase
    if not manifest.windows:
        counted = total([chunk.drops for chunk in manifest.chunks])
        reasons = ", ".join(f"{reason}: {count}" for reason, count in counted.items())
        raise NoWindows(
            f"phase {phase}: no window came of the {place.want.split} source "
            f"({reasons or 'no records'}); see plan.phases.{phase}.seq_len and .data"
        )
    _note(place.pointer, place.key)
    return WindowSet(place.directory, manifest, config.seed, phase)


def find(config: Config, phase: str, split: Split) -> WindowSet | ChoiceSet | None:
    """The set that `prepare` would continue, or None if nothing was prepared or a file changed.

    Reads no content of sources or tokenizer; stats only.
    """
    if config.plan.phases[phase].task == "choice":
        return choice_data.find(config, phase, split)
    inputs, patterns = _inputs(config, phase, split), _patterns(config, phase, split)
    directory = noted(config, "windows", inputs, patterns)
    if directory is None:
        return None
    manifest = read_manifest(directory, directory.name)
    if manifest is None or any(_size(directory / c.file) != c.bytes for c in manifest.chunks):
        return None
    return WindowSet(directory, manifest, config.seed, phase)


def _patterns(config: Config, phase: str, split: Split) -> list[str]:
    data = config.plan.phases[phase].data
    return data.patterns if split == "train" else data.heldout


def _files(config: Config, phase: str, split: Split) -> list[list[Path]]:
    """The files of each pattern, a file under the first one that names it."""
    option = f"plan.phases.{phase}.data.{'sources' if split == 'train' else 'heldout'}"
    patterns = _patterns(config, phase, split)
    if not patterns:
        raise UserError(f"{option}: names no file; give a path, a list of paths or globs")
    found = {pattern: expand([pattern])[0] for pattern in patterns}
    if missing := [pattern for pattern, files in found.items() if not files]:
        raise RunError(f"{option}: no file matches {', '.join(missing)} (from {os.getcwd()})")
    groups: list[list[Path]] = []
    seen: set[Path] = set()
    for pattern in patterns:
        twice = [file for file in found[pattern] if file in seen]
        if twice and split == "train" and config.plan.phases[phase].data.weights:
            raise UserError(f"{option}: two weighted sources name {twice[0]}")
        groups.append([file for file in found[pattern] if file not in seen])
        seen.update(found[pattern])
    return groups


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
        "strict": data.strict,
        "on_over_long": data.on_over_long,
        "on_unstable": data.on_unstable,
        "loss_on": data.loss_on,
        "documents": settings.retrieval.documents if settings.retrieval else None,
        "chunks": [config.data.chunk_records, config.data.chunk_windows],
        "max_record_bytes": config.data.max_record_bytes,
    }
    # The held-out order depends on none of these, so phases and seeds share a set.
    order = {
        "seed": config.seed,
        "phase": phase,
        "weights": data.weights,
        "on_exhausted": data.on_exhausted if data.weights else None,
    }
    return shared | (order if split == "train" else {})


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


def _note(pointer: Path | None, key: str) -> None:
    """Remember which set belongs to the files as they were."""
    if pointer is not None and not pointer.is_file():
        write_json(pointer, {"key": key})


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
