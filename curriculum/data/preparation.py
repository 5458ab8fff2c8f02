"""Making windows: chunks of several sets at once, in worker processes, committed in order.

A chunk depends on nothing but its index, so any process may make it, and the result is the same
for any number of workers. Workers write the files; a chunk counts once this process has listed it
in the manifest of its set, in order. Only as many chunks are started as a set is expected to need.
"""

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from curriculum.config import Phase
from curriculum.data import workers
from curriculum.data.chunks import ChunkInfo, Manifest, write_chunk, write_manifest
from curriculum.data.examples import Item, Report, build
from curriculum.data.order import permutation
from curriculum.data.pack import pack
from curriculum.data.sources import Source, stats
from curriculum.errors import RunError
from curriculum.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Split = Literal["train", "heldout"]

_SAMPLE = 256  # records that tell how long records are
_GC_THRESHOLD = 100_000

Submit = Callable[[int, int], "Future[ChunkInfo]"]


@dataclass(frozen=True)
class ChunkMaker:
    """All that a worker needs to make any chunk of a set: `rows` of `source` in their order."""

    directory: Path
    key: str
    source: Source
    rows: np.ndarray
    chunk_records: int
    max_record_bytes: int
    phase: str
    split: Split
    settings: Phase
    seed: int
    tokenizer: "PreTrainedTokenizerFast"

    def records_of(self, windows: int) -> int:
        """About how many records fill so many windows, going by the first ones."""
        if one_a_window(self.settings):
            return windows
        rows = self.rows[:_SAMPLE].tolist()
        readable = self._readable(rows)
        items, _ = build(self.source, readable, self.phase, self.settings, self.tokenizer)
        tokens = sum(len(item.input_ids) for item in items)
        return max(1, len(rows) * windows * self.settings.seq_len // max(1, tokens))

    @property
    def chunks(self) -> int:
        """How many chunks the whole source makes."""
        return -(-len(self.rows) // self.chunk_records)

    def make(self, index: int) -> ChunkInfo:
        """Read, render, pack, shuffle and write one chunk. `RunError` for records that may not be
        left out."""
        start = index * self.chunk_records
        rows = self.rows[start : start + self.chunk_records].tolist()
        readable = self._readable(rows)
        items, report = build(self.source, readable, self.phase, self.settings, self.tokenizer)
        for row in sorted(set(rows) - set(readable)):
            self._refuse(row, report)
        windows = arranged(items, self.settings)
        if self.split == "train":
            order = permutation(len(windows), self.seed, self.phase, "chunk", index)
            windows = [windows[place] for place in order]
        return write_chunk(self.directory, index, self.key, windows, len(rows), report)

    def _readable(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if self.source.size(row) <= self.max_record_bytes]

    def _refuse(self, row: int, report: Report) -> None:
        """A record that is too large to be read at all is a bad one."""
        size, place = self.source.size(row), self.source.address(row)
        rule = f"data.max_record_bytes={self.max_record_bytes}"
        if self.settings.data.on_bad_record == "error":
            raise RunError(
                f"phase {self.phase}: {place}: the record has {size} bytes, {rule}; remedy: a "
                f"larger data.max_record_bytes, or plan.phases.{self.phase}.data.on_bad_record=skip"
            )
        report.drop(f"bad record: more than {rule}", place)


def arranged(items: Sequence[Item], settings: Phase) -> list[list[Item]]:
    """Examples laid into windows, windows in the order of their first example.

    That order matters for held-out data, of which probes may use the first windows only: the
    order of packing would put the longest examples there.
    """
    if one_a_window(settings):
        return [[item] for item in items]
    lengths = np.array([len(item.input_ids) for item in items], dtype=np.int64)
    bins = sorted(np.sort(indices).tolist() for indices in pack(lengths, settings.seq_len))
    return [[items[index] for index in indices] for indices in bins]


def one_a_window(settings: Phase) -> bool:
    """True if no window holds more than one example."""
    return settings.packing == "none" or settings.task == "retrieval"


@dataclass(eq=False)  # compared by identity: its arrays have no truth
class Growth:
    """A set on its way to `needed` windows (None: all there are). `stats`: of the files when they
    were found; a file that changes meanwhile stops the preparation."""

    maker: ChunkMaker
    manifest: Manifest
    needed: int | None
    stats: list[list[str | int]]
    started: dict[int, "Future[ChunkInfo]"] = field(default_factory=dict)
    listed: int = 0

    @property
    def finished(self) -> bool:
        return enough(self.manifest, self.needed)

    @property
    def next_chunk(self) -> int:
        return len(self.manifest.chunks) + len(self.started)

    def expected(self) -> int:
        """Chunks that the set is expected to have in the end, as far as can be told by now."""
        made = len(self.manifest.chunks)
        if self.needed is None:
            return self.maker.chunks
        if made:
            rate = self.manifest.windows / made
        elif one_a_window(self.maker.settings):
            rate = float(self.maker.chunk_records)
        else:
            return 1  # how many records share a window is known after the first chunk
        missing = max(0, self.needed - self.manifest.windows)
        further = -(-missing // rate) if rate else self.maker.chunks
        return min(self.maker.chunks, made + max(int(further), 0 if self.finished else 1))

    def commit(self, info: ChunkInfo) -> None:
        """List the next chunk. The manifest is written for each of the first chunks, then less and
        less often, so that writing it stays cheap: a kill costs a sixteenth of the work."""
        if stats(self.maker.source.files) != self.stats:
            raise RunError(
                f"phase {self.maker.phase}: a file of the {self.maker.split} source changed while "
                "it was read; start again once it is complete"
            )
        chunks = (*self.manifest.chunks, info)
        exhausted = len(chunks) == self.maker.chunks
        self.manifest = replace(self.manifest, chunks=chunks, exhausted=exhausted)
        if self.finished or len(chunks) - self.listed > len(chunks) // 16:
            write_manifest(self.maker.directory, self.manifest)
            self.listed = len(chunks)


def enough(manifest: Manifest, needed: int | None) -> bool:
    """True if a set holds `needed` windows, or all that its source gives."""
    return manifest.exhausted or (needed is not None and manifest.windows >= needed)


def grow(sets: Sequence[Growth], processes: int) -> None:
    """Make chunks until every set is finished. Raises what the first failing chunk raises."""
    processes = min(processes, sum(one.maker.chunks for one in sets))
    progress = Progress("preparing data", "record", 0)
    try:
        if processes == 1:
            _run(sets, partial(_at_once, sets), 1, progress)
        else:
            with _pool([one.maker for one in sets], processes) as pool:
                try:
                    _run(sets, partial(pool.submit, _make), processes + 1, progress)
                except BaseException:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
    except BrokenProcessPool:
        raise RunError(
            "a process that prepares data died, most likely for want of memory; remedy: fewer "
            "data.workers, or a smaller data.chunk_records"
        ) from None
    finally:
        progress.close()


def _run(sets: Sequence[Growth], submit: Submit, most: int, progress: Progress) -> None:
    """Keep at most `most` chunks in the making, and list them as they are done."""
    while unfinished := [one for one in sets if not one.finished]:
        for place, one in enumerate(sets):
            while not one.finished and one.next_chunk < one.expected() and _running(sets) < most:
                one.started[one.next_chunk] = submit(place, one.next_chunk)
        wait([f for one in sets for f in one.started.values()], return_when=FIRST_COMPLETED)
        for one in unfinished:
            _commit(one, sets, progress)


def _running(sets: Sequence[Growth]) -> int:
    return sum(len(one.started) for one in sets)


def _commit(one: Growth, sets: Sequence[Growth], progress: Progress) -> None:
    """List what is done, in order, and forget what was started in vain."""
    while not one.finished:
        future = one.started.get(len(one.manifest.chunks))
        if future is None or not future.done():
            return
        info = future.result()
        del one.started[len(one.manifest.chunks)]
        one.commit(info)
        total = sum(
            min(len(one.maker.rows), one.expected() * one.maker.chunk_records) for one in sets
        )
        progress.advance(info.records, one.maker.phase, total)
    for future in one.started.values():
        future.cancel()
    one.started.clear()


def _at_once(sets: Sequence[Growth], place: int, index: int) -> "Future[ChunkInfo]":
    future: Future[ChunkInfo] = Future()
    future.set_result(sets[place].maker.make(index))
    return future


def _pool(makers: list[ChunkMaker], processes: int) -> ProcessPoolExecutor:
    context = get_context("fork" if workers.may_fork() else "spawn")
    return ProcessPoolExecutor(processes, context, _begin, (makers, os.getpid()))


# A pool hands arguments to its processes once, where they start, and jobs find them here.
_makers: list[ChunkMaker] = []


def _begin(makers: list[ChunkMaker], parent: int) -> None:
    """A worker uses one core."""
    workers.follow(parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)  # records are many small objects and hardly any cycles
    _makers[:] = makers


def _make(place: int, index: int) -> ChunkInfo:
    return _makers[place].make(index)
