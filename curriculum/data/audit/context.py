"""What a finding about a phase's data is made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curriculum.config import Audit, Config, Phase
from curriculum.data.audit.facts import Facts
from curriculum.finding import Finding
from curriculum.plan.budget import with_known_length
from curriculum.plan.scale import phase_steps

if TYPE_CHECKING:
    from curriculum.data.window_set import WindowSet


@dataclass(frozen=True)
class PhaseData:
    """One phase: facts of its training files and held-out files, and the prepared windows.

    `windows` is None where none are prepared, `heldout` where the phase has none; `training`
    are the facts of all phases of the plan by name. `size`: windows of the phase over those that
    the plan has at full size.
    """

    config: Config
    name: str
    facts: Facts
    heldout: Facts | None
    windows: "WindowSet | None"
    training: Mapping[str, Facts]
    size: float = 1.0

    @property
    def phase(self) -> Phase:
        return self.config.plan.phases[self.name]

    @property
    def limits(self) -> Audit:
        return self.config.audit

    @property
    def records_read(self) -> int:
        """Records that the prepared windows were made of."""
        return sum(chunk.records for chunk in self.windows.manifest.chunks) if self.windows else 0

    @property
    def reached(self) -> int | None:
        """Records that the phase's steps train on, at most all; None if its length is unknown.

        Windows are shuffled within a chunk, so part of a chunk holds that part of its records.
        """
        if self.windows is None:
            return None
        windows, phase = self.windows, self.phase
        if windows.exhausted:
            phase = with_known_length(phase, len(windows))
        steps = phase_steps(phase)
        if steps is None:
            return None
        left, records = steps * phase.batch_size, 0.0
        for chunk in windows.manifest.chunks:
            used = min(left, chunk.windows)
            # a chunk without windows was read on the way
            records += chunk.records * (used / chunk.windows if chunk.windows else left > 0)
            left -= used
        return min(round(records), self.facts.records)

    def finding(
        self,
        code: str,
        severity: str,
        message: str,
        remedy: str,
        examples: Sequence[str] = (),
    ) -> Finding:
        """A finding about this phase, with no more examples than wanted."""
        shown = tuple(examples[: self.limits.examples])
        return Finding(code, severity, self.name, f"{self.name}: {message}", remedy, shown)  # type: ignore[arg-type]


def of(count: int, total: int, what: str = "records") -> str:
    """`20,606 of 74,709 targets (27.6%)`."""
    return f"{count:,} of {total:,} {what} ({count / total:.1%})"
