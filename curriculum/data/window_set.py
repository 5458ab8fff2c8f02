"""A prepared set of windows as a sequence, with its token counts."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from curriculum.data.chunks import Chunk, Manifest, Window
from curriculum.data.order import epoch_permutation

_OPEN_CHUNKS = 32


class WindowSet:
    """Prepared windows in their order: `windows[i]` for i in `range(len(windows))`.

    `exhausted`: the source is used up, so `len` is exact; otherwise there may be more.
    `drops` and `cuts`: records left out and changed, by reason.
    """

    def __init__(self, directory: Path, manifest: Manifest, seed: int, phase: str) -> None:
        self.directory, self.manifest = directory, manifest
        self.exhausted = manifest.exhausted
        self.drops = total([chunk.drops for chunk in manifest.chunks])
        self.cuts = total([chunk.cuts for chunk in manifest.chunks])
        self._seed, self._phase = seed, phase
        self._first = np.cumsum([0, *(chunk.windows for chunk in manifest.chunks)])
        # Each open chunk holds a file descriptor.
        self._chunk = lru_cache(maxsize=_OPEN_CHUNKS)(self._open)

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(index)
        place = int(np.searchsorted(self._first, index, side="right")) - 1
        return self._chunk(place)[index - int(self._first[place])]

    def _open(self, place: int) -> Chunk:
        return Chunk(self.directory, self.manifest.chunks[place], self.manifest.key)

    def forward_tokens(self, count: int) -> int:
        """Tokens in the windows of the first `count` positions, later epochs included."""
        return self._sum(count, [chunk.tokens for chunk in self.manifest.chunks], "tokens")

    def trained_tokens(self, count: int) -> int:
        """Positions with loss in the windows of the first `count` positions; 0 for retrieval."""
        totals = [chunk.trained_tokens for chunk in self.manifest.chunks]
        return self._sum(count, totals, "trained_tokens")

    def _sum(self, count: int, totals: list[int], column: str) -> int:
        if count and not len(self):
            raise ValueError(f"{count} positions asked of an empty set of windows")
        epochs, rest = divmod(count, len(self)) if count else (0, 0)
        finished = epochs * sum(totals)
        if not rest:
            return finished
        if epochs == 0:
            whole = int(np.searchsorted(self._first, rest, side="right")) - 1
            part = getattr(self._chunk(whole), column)[: rest - self._first[whole]]
            return sum(totals[:whole]) + int(part.sum())
        each = np.concatenate(
            [getattr(self._chunk(i), column) for i in range(len(self.manifest.chunks))]
        )
        order = epoch_permutation(len(self), self._seed, self._phase, epochs)[:rest]
        return finished + int(each[order].sum(dtype=np.int64))


def total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sums of counts by reason."""
    sums: Counter[str] = Counter()
    for count in counts:
        sums.update(count)
    return dict(sorted(sums.items()))
