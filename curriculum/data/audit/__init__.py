"""The data audit: what is wrong with a plan's data, before a step is trained on it.

    fields      what is looked at in a record of any task
    compare     texts up to case and white space
    shape       how a text that should hold a question looks
    abstains    which targets say that there is no answer, and how
    collect     one pass over a source: a few numbers and hashes a record
    facts       what is kept of a source
    cache       facts on disk, by the content of the files
    context     a phase: its facts, windows and limits
    checks/     one small file a finding, registered in `checks/__init__.py`
    figures     the figures of a phase
    report      table and JSON

Token counts come from the manifests of the prepared windows; everything else from the texts of
the whole files. Files that several phases share are read once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from curriculum.config import Config
from curriculum.data import workers
from curriculum.data.audit.cache import facts_of
from curriculum.data.audit.checks import CHECKS
from curriculum.data.audit.context import PhaseData
from curriculum.data.audit.facts import Facts
from curriculum.data.audit.figures import PhaseFigures, figures_of
from curriculum.data.audit.report import AuditReport
from curriculum.data.sources import expand
from curriculum.finding import Finding, ranked

if TYPE_CHECKING:
    from curriculum.data.window_set import WindowSet

__all__ = ["AuditReport", "PhaseFigures", "audit", "audit_plan"]


def audit(config: Config, windows: Mapping[str, "WindowSet"], size: float = 1.0) -> list[Finding]:
    """Findings about the data of every phase whose files are there: errors first.

    `config` is scaled, `size` is what its scale makes of a phase's windows; `windows` are the
    training windows prepared for phases, by name. A phase without windows is audited as far as its
    texts tell. `checks.ignore` turns the severity of a code to `ignored`. Raises `RunError` for
    files that cannot be read.
    """
    return audit_plan(config, windows, size).findings


def audit_plan(
    config: Config, windows: Mapping[str, "WindowSet"], size: float = 1.0
) -> AuditReport:
    """`audit` with the figures of each phase, in the order of the plan."""
    phases = _phases(config, windows, size)
    found = [finding for data in phases for check in CHECKS for finding in check(data)]
    return AuditReport(
        config.plan.name,
        config.profile.name,
        [figures_of(data) for data in phases],
        ranked(found, config.checks.ignore),
    )


def _phases(config: Config, windows: Mapping[str, "WindowSet"], size: float) -> list[PhaseData]:
    processes = workers.count(config.data.workers)
    known: dict[tuple[str, tuple[Path, ...]], Facts] = {}

    def facts(patterns: list[str], task: str) -> Facts | None:
        files, missing = expand(patterns)
        if not files or missing:
            return None
        key = (task, tuple(files))
        if key not in known:
            known[key] = facts_of(files, task, config.cache.dir, processes)
        return known[key]

    training = {
        name: found
        for name, phase in config.plan.phases.items()
        if (found := facts(phase.data.patterns, phase.task)) is not None
    }
    return [
        PhaseData(
            config,
            name,
            found,
            facts(config.plan.phases[name].data.heldout, config.plan.phases[name].task),
            None if config.plan.phases[name].task == "choice" else windows.get(name),
            training,
            size,
        )
        for name, found in training.items()
    ]
