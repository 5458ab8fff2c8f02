"""A packed set on disk as a sequence of bins, every rule checked before the first is read.

Files are memory-mapped. A check reads everything once; with a `cache_dir` it is remembered by the
content of the files, so that opening a set again reads offsets only.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np

from curriculum.data.packed_choice.arrow import read_file
from curriculum.data.packed_choice.bins import Bin
from curriculum.data.packed_choice.checks import VERSION, Limits, Place, check
from curriculum.data.packed_choice.columns import Columns, bin_of
from curriculum.data.packed_choice.manifest import (
    EVAL_SCHEMA,
    MANIFEST_FILE,
    SCHEMA,
    EvalManifest,
    Manifest,
    read_manifest,
)
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.data.sources import digest
from curriculum.files import write_json


class PackedChoice:
    """The bins of a set in file order: `bins[i]` for i in `range(len(bins))`, each with arrays of
    its own.

    `tokens` and `rows`: int64 [bins], of each bin; `weighted`: rows that have a weight.
    """

    def __init__(self, directory: Path, manifest: Manifest | EvalManifest) -> None:
        """Map the files; the rules of bins are not checked here. `BadSet`."""
        self.directory, self.manifest = directory, manifest
        self._evaluation = isinstance(manifest, EvalManifest)
        self._components = 0 if isinstance(manifest, EvalManifest) else len(manifest.mix_components)
        self._batches: list[tuple[Place, Columns]] = []
        before = 0
        for file in manifest.files:
            path, first = directory / file.name, 0
            for columns in read_file(path, file.num_bins, before, self._evaluation):
                self._batches.append((Place(path, first, before), columns))
                first += len(columns["input_ids"].sizes)
            before += file.num_bins
        self.tokens = self._each("input_ids")
        self.rows = self._each("positions")
        self._first = np.cumsum([0, *(len(c["input_ids"].sizes) for _, c in self._batches)])

    def __len__(self) -> int:
        return self.manifest.num_bins

    def __getitem__(self, index: int) -> Bin:
        if not 0 <= index < len(self):
            raise IndexError(index)
        batch = int(np.searchsorted(self._first, index, side="right")) - 1
        columns = self._batches[batch][1]
        return bin_of(columns, index - int(self._first[batch]), self._components)

    @cached_property
    def weighted(self) -> np.ndarray:
        """int64 [bins]; evaluation sets, which have no weights, have no such rows."""
        if self._evaluation:
            return np.zeros(len(self), np.int64)
        found = []
        for _, columns in self._batches:
            weights = columns["weights"]
            before = np.cumsum(np.concatenate([[0], weights.values > 0]), dtype=np.int64)
            found.append(np.diff(before[weights.offsets]))
        return np.concatenate(found)

    def _each(self, name: str) -> np.ndarray:
        sizes = [columns[name].sizes for _, columns in self._batches]
        return np.concatenate(sizes).astype(np.int64)

    def check(self, vocab_size: int | None) -> None:
        """Every rule of bins, of row ids, and of the totals of the manifest. `BadSet`."""
        limits = Limits(
            self.manifest.seq_len,
            self.manifest.max_choices,
            self._components,
            vocab_size,
            self._evaluation,
        )
        for place, columns in self._batches:
            check(columns, limits, place)
        if isinstance(self.manifest, EvalManifest):
            self._check_row_ids(self.manifest.num_rows)
        else:
            self._check_totals(self.manifest)

    def _check_totals(self, manifest: Manifest) -> None:
        path, rows, tokens = self.directory / MANIFEST_FILE, self.rows.sum(), self.tokens.sum()
        segments = self._each("seq_lens").sum()
        if manifest.num_tokens != tokens:
            raise BadSet(path, f"num_tokens={manifest.num_tokens}, but the bins hold {tokens}")
        if manifest.num_examples not in (rows, segments):
            rule = f"num_examples={manifest.num_examples}, but the bins hold {rows} rows"
            raise BadSet(path, rule if rows == segments else f"{rule} in {segments} segments")

    def _check_row_ids(self, num_rows: int) -> None:
        """0 to `num_rows - 1`, each once."""
        ids = np.concatenate([columns["row_ids"].values for _, columns in self._batches])
        outside = np.flatnonzero((ids < 0) | (ids >= num_rows))
        if len(outside):
            at = int(outside[0])
            self._refuse_row(at, f"row_ids={ids[at]}: the set has rows 0 to {num_rows - 1}")
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero(np.diff(ids[order]) == 0)
        if len(again):
            at = int(order[again + 1].min())
            self._refuse_row(at, f"row_ids={ids[at]}: given before; every row is there once")
        if len(ids) < num_rows:
            missing = int(np.setdiff1d(np.arange(num_rows), ids)[0])
            raise BadSet(
                self.directory / MANIFEST_FILE,
                f"num_rows={num_rows}, but the bins hold {len(ids)}; row_ids={missing} is missing",
            )

    def _refuse_row(self, at: int, rule: str) -> None:
        """About row number `at` of all rows."""
        ends = np.cumsum(self.rows)
        bin = int(np.searchsorted(ends, at, side="right"))
        batch = int(np.searchsorted(self._first, bin, side="right")) - 1
        row = at - int(ends[bin] - self.rows[bin])
        self._batches[batch][0].refuse(rule, bin - int(self._first[batch]), row)

    def largest_id(self) -> int:
        """The largest token id of the set, choices included."""
        found = [
            columns[name].values.max()
            for _, columns in self._batches
            for name in ("input_ids", "choice_ids", "observed_ids")
            if name in columns and len(columns[name].values)
        ]
        return int(max(found))


def open_packed(
    directory: Path | str,
    *,
    vocab_size: int | None,
    seq_len: int | None = None,
    split: str | None = None,
    cache_dir: Path | str | None = None,
) -> PackedChoice:
    """A training or validation set, checked. `BadSet` names file, bin, row and rule.

    `seq_len`: of who asks; a set that was packed to more is refused, as is one of another `split`.
    """
    manifest = read_manifest(directory)
    path = Path(directory) / MANIFEST_FILE
    if not isinstance(manifest, Manifest):
        raise BadSet(path, f"schema_version={manifest.schema_version!r}; {SCHEMA} is needed here")
    if split is not None and manifest.split != split:
        raise BadSet(path, f"split={manifest.split!r}; {split!r} is needed here")
    if seq_len is not None and manifest.seq_len > seq_len:
        raise BadSet(
            path, f"seq_len={manifest.seq_len}: its bins do not fit the seq_len={seq_len} asked for"
        )
    return _opened(PackedChoice(Path(directory), manifest), vocab_size, cache_dir)


def open_eval(
    directory: Path | str, *, vocab_size: int | None, cache_dir: Path | str | None = None
) -> PackedChoice:
    """An evaluation set, checked. `BadSet` names file, bin, row and rule."""
    manifest = read_manifest(directory)
    if not isinstance(manifest, EvalManifest):
        raise BadSet(
            Path(directory) / MANIFEST_FILE,
            f"schema_version={manifest.schema_version!r}; {EVAL_SCHEMA} is needed here",
        )
    return _opened(PackedChoice(Path(directory), manifest), vocab_size, cache_dir)


def _opened(
    packed: PackedChoice, vocab_size: int | None, cache_dir: Path | str | None
) -> PackedChoice:
    """The set, after a check that is not repeated for contents that passed it before."""
    if cache_dir is None:
        packed.check(vocab_size)
        return packed
    names = [MANIFEST_FILE, *(file.name for file in packed.manifest.files)]
    contents = digest([packed.directory / name for name in names], cache_dir)
    key = hashlib.sha256(json.dumps([contents, names[1:], VERSION]).encode()).hexdigest()[:32]
    note = Path(cache_dir) / "packed_choice" / f"{key}.json"
    try:
        largest = int(json.loads(note.read_bytes())["largest_id"])
    except (OSError, ValueError, KeyError, TypeError):  # not checked yet
        largest = None
    if largest is None or (vocab_size is not None and largest >= vocab_size):
        packed.check(vocab_size)
        write_json(note, {"largest_id": packed.largest_id()})
    return packed
