"""What a check of a plan sees."""

from collections.abc import Mapping
from dataclasses import dataclass

from curriculum.config import Config
from curriculum.plan.budget import Budget, PhaseBudget
from curriculum.plan.graph import closing


@dataclass(frozen=True)
class CheckContext:
    """`missing`: phase -> data patterns that match no file. `starting`: False in a dry run."""

    config: Config
    budget: Budget
    missing: Mapping[str, list[str]]
    starting: bool

    @property
    def closing(self) -> list[PhaseBudget]:
        """The phases that train last: one, or the ends of the branches that a last merge joins."""
        names = closing(self.config.plan)
        return [row for row in self.budget.phases if row.name in names]
