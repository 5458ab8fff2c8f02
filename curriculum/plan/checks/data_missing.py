"""`data/missing`: patterns that match no file."""

from collections.abc import Iterator

from curriculum.config import UNKNOWN_ROOT
from curriculum.finding import Finding
from curriculum.plan.checks.context import CheckContext


def data_missing(context: CheckContext) -> Iterator[Finding]:
    """Error when a run starts, else a warning; one for `data.root` not given, else one a phase."""
    severity = "error" if context.starting else "warning"
    rootless = [
        phase
        for phase, patterns in context.missing.items()
        if any(pattern.startswith(UNKNOWN_ROOT) for pattern in patterns)
    ]
    if rootless:
        yield Finding(
            "data/missing",
            severity,
            None,
            f"data.root is not given: no data for {len(rootless)} of "
            f"{len(context.config.plan.phases)} phases",
            f"set data.root=DIR, which holds one folder a phase (DIR/{rootless[0]}/train.jsonl)",
        )
    for phase, patterns in context.missing.items():
        if not patterns or phase in rootless:
            continue
        evals = context.config.choice_eval_of(phase)
        if evals is not None and set(patterns) <= set(evals.sets.values()):
            remedy = f"put it there, or set plan.phases.{phase}.choice_eval.sets={{}} (no evals)"
        elif set(patterns) <= set(context.config.plan.phases[phase].data.heldout):
            remedy = f"put it there, or set plan.phases.{phase}.data.heldout=[] (no probes)"
        else:
            remedy = f"put it there, or set data.root or plan.phases.{phase}.data.sources"
        yield Finding(
            "data/missing", severity, phase, f"no file matches {', '.join(patterns)}", remedy
        )
