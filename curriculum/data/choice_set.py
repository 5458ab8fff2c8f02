"""A packed set as the windows of a choice phase: one bin is one window, in file order."""

from pathlib import Path

import numpy as np

from curriculum.data.chunks import Window
from curriculum.data.order import epoch_permutation
from curriculum.data.packed_choice import Bin, EvalManifest, PackedChoice


def choice_window(one: Bin, mix_components: tuple[str, ...] = ()) -> Window:
    """A bin as the engine takes it. In an evaluation set, without weights, nothing carries loss."""
    weights = np.zeros(len(one.input_ids), np.float32)
    if len(one.weights):
        weights[one.positions] = one.weights
    return Window(
        input_ids=one.input_ids,
        seq_lens=one.seq_lens,
        loss_weights=weights,
        document_ids=np.zeros(0, np.int64),
        record_ids=np.zeros(0, np.int64) if one.row_ids is None else one.row_ids,
        choice=one,
        mix_components=mix_components,
    )


class ChoiceSet:
    """The bins of a packed set as windows: `windows[i]` for i in `range(len(windows))`.

    As `WindowSet`, of which a phase sees the same; a packed set is always whole (`exhausted`).
    """

    exhausted = True

    def __init__(self, packed: PackedChoice, seed: int, phase: str) -> None:
        assert not isinstance(packed.manifest, EvalManifest), "an evaluation set has no targets"
        self.packed, self.directory = packed, Path(packed.directory)
        self.mix_components = tuple(packed.manifest.mix_components)
        self._seed, self._phase = seed, phase

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Window:
        return choice_window(self.packed[index], self.mix_components)

    def forward_tokens(self, count: int) -> int:
        """Tokens in the bins of the first `count` positions, later epochs included."""
        return self._sum(count, self.packed.tokens)

    def trained_tokens(self, count: int) -> int:
        """Rows with a weight in the bins of the first `count` positions."""
        return self._sum(count, self.packed.weighted)

    def _sum(self, count: int, each: np.ndarray) -> int:
        epochs, rest = divmod(count, len(self))
        order = epoch_permutation(len(self), self._seed, self._phase, epochs)[:rest]
        return epochs * int(each.sum()) + int(each[order].sum())
