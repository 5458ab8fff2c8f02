"""Bins to a set on disk that is whole or absent.

Files are written under temporary names and renamed, the manifest last: a directory without one is
no set. What is written has passed the rules that reading applies.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.data.packed_choice.arrow import write_file
from curriculum.data.packed_choice.bins import Bin
from curriculum.data.packed_choice.checks import Limits, Place, check
from curriculum.data.packed_choice.columns import columns_of
from curriculum.data.packed_choice.manifest import (
    MANIFEST_FILE,
    EvalManifest,
    File,
    Manifest,
    is_packed,
)
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.data.packed_choice.targets import TARGETS_FILE, write_targets
from curriculum.errors import RunError
from curriculum.files import write_json

WHOLE = "all"
"""The one component of a set without a mixture: other readers of the format want at least one."""

_BINS_PER_FILE = 4096
_BINS_FILE = re.compile(r"bins-\d{5,}\.arrow")
_UNLIMITED = np.iinfo(np.int32).max


def write_packed(
    directory: Path | str,
    bins: Iterable[Bin],
    *,
    split: str,
    seq_len: int,
    mix_components: Sequence[str] = (),
    source: Any = None,
    bins_per_file: int = _BINS_PER_FILE,
    overwrite: bool = False,
) -> Manifest:
    """Write a training or validation set (`split` train or val) and return its manifest.

    Raises `RunError` where a set lies already (unless `overwrite`) or there is no bin, `BadSet` for
    a bin that breaks a rule. Bins without a mixture are written as wholly of the one component
    `WHOLE`. `source`: plain values that say how the set was made.
    """
    if not mix_components:
        mix_components, bins = (WHOLE,), (_whole(one) for one in bins)
    limits = Limits(seq_len, _UNLIMITED, len(mix_components), None, evaluation=False)
    with _replaced(Path(directory), overwrite):
        made = _write_files(Path(directory), bins, limits, bins_per_file)
        manifest = Manifest(
            split=split,
            seq_len=seq_len,
            num_bins=made.bins,
            num_examples=made.rows,
            num_tokens=made.tokens,
            max_choices=made.max_choices,
            mix_components=tuple(mix_components),
            files=tuple(made.files),
            source=source,
        )
        _commit(Path(directory), manifest)
    return manifest


def write_eval(
    directory: Path | str,
    bins: Iterable[Bin],
    *,
    name: str,
    seq_len: int,
    source: Any = None,
    targets: Sequence[np.ndarray] | None = None,
    bins_per_file: int = _BINS_PER_FILE,
    overwrite: bool = False,
) -> EvalManifest:
    """Write an evaluation set, as `write_packed` does. `targets`: float32 probabilities of the
    choices of each row, by row id; they go to `targets.arrow` beside the set."""
    limits = Limits(seq_len, _UNLIMITED, 0, None, evaluation=True)
    with _replaced(Path(directory), overwrite):
        made = _write_files(Path(directory), bins, limits, bins_per_file)
        if targets is not None:
            if len(targets) != made.rows:
                raise RunError(f"{directory}: {len(targets)} targets for {made.rows} rows")
            write_targets(directory, targets)
        manifest = EvalManifest(
            name=name,
            seq_len=seq_len,
            num_bins=made.bins,
            num_rows=made.rows,
            max_choices=made.max_choices,
            files=tuple(made.files),
            source=source,
        )
        _commit(Path(directory), manifest)
    return manifest


def _whole(one: Bin) -> Bin:
    if one.mix_weights.ndim == 2 and one.mix_weights.shape[1]:
        shares = one.mix_weights.shape[1]
        raise RunError(f"mix_components=[]: a bin has {shares} mix_weights a row; name them")
    return replace(one, mix_weights=np.ones((one.rows, 1), np.float32))


@dataclass
class _Made:
    files: list[File] = field(default_factory=list)
    bins: int = 0
    rows: int = 0
    tokens: int = 0
    max_choices: int = 1


def _write_files(directory: Path, bins: Iterable[Bin], limits: Limits, bins_per_file: int) -> _Made:
    made, left = _Made(), iter(bins)
    while part := list(islice(left, bins_per_file)):
        path = directory / f"bins-{len(made.files):05d}.arrow"
        try:
            columns = columns_of(part, limits.evaluation)
        except ValueError as error:
            raise BadSet(path, str(error)) from None
        check(columns, limits, Place(path, 0, made.bins))
        write_file(path, columns, limits.evaluation)
        made.files.append(File(path.name, len(part)))
        made.bins += len(part)
        made.rows += len(columns["positions"].values)
        made.tokens += len(columns["input_ids"].values)
        made.max_choices = max(made.max_choices, *columns["choice_ids"].counts.tolist(), 1)
    if not made.bins:
        raise RunError(f"{directory}: no bin to write; an empty set is of no use to a run")
    return made


def _commit(directory: Path, manifest: Manifest | EvalManifest) -> None:
    values = asdict(manifest)
    if manifest.source is None:
        del values["source"]
    # what every reader looks for comes first
    ordered = {"schema_version": values.pop("schema_version")} | values
    write_json(directory / MANIFEST_FILE, ordered)


def obstacle(directory: Path, overwrite: bool) -> str | None:
    """What forbids to write a set to a directory: something else's manifest; and, unless it may be
    replaced, a set, or files that would be mistaken for parts of one."""
    manifest = (directory / MANIFEST_FILE).exists()
    if manifest and not is_packed(directory):
        return f"holds the {MANIFEST_FILE} of something else"
    if overwrite:
        return None
    if manifest:
        return "holds a packed set already"
    if parts := _parts(directory):
        return f"holds {parts[0].name}, but no {MANIFEST_FILE}: left by a kill, or a file of yours"
    return None


@contextmanager
def _replaced(directory: Path, overwrite: bool) -> Iterator[None]:
    """Where a set is written. One that lies there is taken away first; what an error leaves behind
    is taken away, too, so that nothing looks like a set that is none."""
    if reason := obstacle(directory, overwrite):
        raise RunError(f"{directory}: {reason}; name another directory")
    _remove(directory)
    try:
        yield
    except BaseException:
        _remove(directory)
        raise


def _parts(directory: Path) -> list[Path]:
    """Files of a set besides its manifest."""
    found = [path for path in directory.glob("bins-*.arrow") if _BINS_FILE.fullmatch(path.name)]
    targets = directory / TARGETS_FILE
    return sorted(found) + [targets] * targets.exists()


def _remove(directory: Path) -> None:
    """The files of a set, its manifest first."""
    manifest = directory / MANIFEST_FILE
    for path in [manifest] * manifest.exists() + _parts(directory):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{path}: cannot be replaced: {error.strerror or error}") from None
