"""What a check sees and what it says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from curriculum.config import Config
from curriculum.plan.budget import Budget, PhaseBudget


@dataclass(frozen=True)
class Finding:
    """`code` is stable; the message carries the figures and the remedy says what to do."""

    code: str
    severity: Literal["error", "warning", "ignored"]
    phase: str | None
    message: str
    remedy: str


@dataclass(frozen=True)
class CheckContext:
    """`missing`: phase -> data patterns that match no file. `starting`: False in a dry run."""

    config: Config
    budget: Budget
    missing: Mapping[str, list[str]]
    starting: bool

    @property
    def last(self) -> PhaseBudget:
        """The phase that the plan ends in."""
        return self.budget.phases[-1]
