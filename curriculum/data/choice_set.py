"""A packed set as the windows of a choice phase: one bin is one window, in file order."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from curriculum.data.chunks import Window
from curriculum.data.order import epoch_permutation
from curriculum.data.packed_choice import WHOLE, Bin, EvalManifest, PackedChoice
from curriculum.errors import RunError


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

    def __init__(
        self,
        packed: PackedChoice,
        seed: int,
        phase: str,
        mix_components: tuple[str, ...] | None = None,
    ) -> None:
        """`mix_components`: those that windows are to have instead of the set's own, see
        `with_components`."""
        assert not isinstance(packed.manifest, EvalManifest), "an evaluation set has no targets"
        self.packed, self.directory = packed, Path(packed.directory)
        self._own = tuple(packed.manifest.mix_components)
        self.mix_components = self._own if mix_components is None else mix_components
        self._seed, self._phase = seed, phase

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Window:
        one = self.packed[index]
        if self.mix_components != self._own:
            one = replace(one, mix_weights=self._mixed(one.mix_weights))
        return choice_window(one, self.mix_components)

    def with_components(self, names: tuple[str, ...]) -> "ChoiceSet":
        """The same bins with the mixture of another set: its components in its order, one that
        this set lacks having no share. Of two sets without a mixture, one may name none and the
        other one, `all`.

        Raises `RunError` for a component that is not among `names`.
        """
        single = {(), (WHOLE,)}
        unknown = [name for name in self._own if name not in names]
        if not (names in single and self._own in single) and (unknown or self._own in single):
            raise RunError(
                f"{self.directory}: its mixture is of {', '.join(self._own) or 'nothing'}, that "
                f"of the training data of {', '.join(names) or 'nothing'}; give both the same "
                "(mix_components of data pack-choice)"
            )
        return ChoiceSet(self.packed, self._seed, self._phase, names)

    def _mixed(self, shares: np.ndarray) -> np.ndarray:
        """[R, M] of the set's own components as those of `mix_components`."""
        mixed = np.zeros((len(shares), len(self.mix_components)), np.float32)
        for place, name in enumerate(self.mix_components):
            if name in self._own:
                mixed[:, place] = shares[:, self._own.index(name)]
            elif not self._own:
                mixed[:, place] = 1.0
        return mixed

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
