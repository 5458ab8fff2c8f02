"""Finished phases of a plan: where each one lies, and which of the others this run may train.

Several runs may need the same phase at once: one of them trains it, the others wait for its end.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from curriculum import store
from curriculum.checked import CheckedPlan, key_record
from curriculum.engine.distributed import World
from curriculum.errors import RunError
from curriculum.faults.signals import StopRequest
from curriculum.store.claim import Claim
from curriculum.training.opening import Opening

_POLL_SECONDS = 1.0

log = logging.getLogger(__name__)


class Finished:
    """`ends`: where the run knows the end of each finished phase: in the store, or in a checkpoint
    of its own. Every rank makes the same calls."""

    def __init__(self, plan: CheckedPlan, ranks: World, opening: Opening) -> None:
        self._plan, self._ranks = plan, ranks
        self._refused = dict(opening.refused)
        self._claims: dict[str, Claim] = {}
        self.ends: dict[str, Path] = ranks.from_main(lambda: self._stored(opening.start.ends))

    def place(self, phase: str) -> Path:
        """Where the end of a phase lies in the store, or will."""
        return Path(self._plan.ready.store.dir) / self._plan.keys[phase]

    def end(self, phase: str) -> Path:
        """Where the end of a finished phase lies now; call it with no save on its way.

        Raises `RunError` if neither the run nor the store could keep it.
        """
        places, key = (self.place(phase), self.ends[phase]), self._plan.keys[phase]
        found = self._ranks.from_main(
            lambda: next((d for d in places if d not in self._refused and _holds(d, key)), None)
        )
        if found is None:
            raise RunError(
                f"phase {phase}: its end could not be saved, and another phase continues it; make "
                f"room in {places[1].parent} or store.dir={places[0].parent}, and give the same "
                "command again"
            )
        return found

    def claim(self, phase: str, stop: StopRequest) -> Mapping[str, Any] | None:
        """Wait until no other run trains a phase, and claim it.

        If another one has finished it meanwhile its end is taken over, and the record of that
        run's journal returned.
        """
        place, said = self.place(phase), False
        claim = self._claims[phase] = Claim(place.parent, place.name)
        while not self._plan.ready.run.fresh:
            taken, there = self._ranks.from_main(
                lambda: (claim.take(), store.finished(place.parent, place.name))
            )
            if there is not None and there not in self._refused:
                claim.release()
                self.ends[phase] = there
                return store.read_meta(there)["journal"]
            if taken:
                break
            if self._ranks.is_main and not said:
                log.info("phase %s is trained by another run: waiting", phase)
                said = True
            self._ranks.stop_together(stop)
            time.sleep(_POLL_SECONDS)
        return None

    def keep(self, phase: str, directory: Path) -> Path:
        """Put the end of a phase that lies in `directory` into the store; rank 0 alone."""
        place = self.place(phase)
        if self._refused.pop(place, None) is not None:
            store.discard(place)  # its sizes are right, so that it would be kept
        kept = store.keep(place.parent, place.name, directory, key_record(self._plan, phase))
        if phase in self._claims:
            self._claims[phase].release()
        return kept

    def release(self, but: str | None = None) -> None:
        """Let other runs have the phases that this one has claimed."""
        for phase, claim in self._claims.items():
            if phase != but:
                claim.release()

    def _stored(self, ends: Mapping[str, Path]) -> dict[str, Path]:
        """The same with what a kill has kept from the store put into it."""
        stored = dict(ends)
        for phase, directory in ends.items():
            if directory.parent == self._plan.directory / "checkpoints":
                with suppress(RunError):  # if it cannot be written, it stays where it is
                    stored[phase] = self.keep(phase, directory)
        return stored


def _holds(directory: Path, key: str) -> bool:
    """A merge takes no step, so that its checkpoint may have replaced that of the phase before."""
    if not store.committed(directory) or store.damage(directory) is not None:
        return False
    return store.read_meta(directory)["key"] == key
