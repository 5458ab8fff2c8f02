"""What a check of a plan sees."""

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.config import Config
from curriculum.plan.budget import Budget, PhaseBudget


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
