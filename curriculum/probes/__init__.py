"""Probes: forward-only evaluations on the held-out data of each phase.

`ProbeSuite.build` reads, renders and tokenizes the held-out data once, at the start of a run;
`suite.run` then only does forwards. A new probe is one module with `prepare(config, tokenizer)`,
and one line in `PROBES`.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from curriculum.config import Config
from curriculum.errors import RunError, UserError
from curriculum.probes import choice, generation, perplexity, retrieval
from curriculum.probes.base import (
    Evaluator,
    Prepared,
    ProbeResult,
    heldout_sets,
    measured_as,
    only_finite,
)
from curriculum.probes.storage import load, to_json, write

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = [
    "Evaluator",
    "ProbeResult",
    "ProbeSuite",
    "check_heldout",
    "load",
    "measured_as",
    "run_probes",
    "to_json",
    "write",
]

PROBES: Mapping[str, Callable[[Config, "PreTrainedTokenizerFast"], list[Prepared]]] = {
    perplexity.KIND: perplexity.prepare,
    retrieval.KIND: retrieval.prepare,
    generation.KIND: generation.prepare,
    choice.KIND: choice.prepare,
}

# Totals over the phases of one kind, made when all probes of that kind ran.
TOTALS: Mapping[str, Callable[[Sequence[ProbeResult]], list[ProbeResult]]] = {
    perplexity.KIND: perplexity.totals,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeSuite:
    """All probes of a plan with their held-out data, in the order of `PROBES` and of the plan."""

    probes: tuple[Prepared, ...]

    @classmethod
    def build(cls, config: Config, tokenizer: "PreTrainedTokenizerFast") -> "ProbeSuite":
        """Prepare every probe of the (scaled) plan; a bad held-out record is a `RunError`."""
        return cls(tuple(probe for make in PROBES.values() for probe in make(config, tokenizer)))

    @classmethod
    def brief(cls, config: Config, tokenizer: "PreTrainedTokenizerFast") -> "ProbeSuite":
        """The same on `probes.phase_end_fraction` of the limits, for use between phases."""
        limits = config.probes

        def part(limit: int | None) -> int | None:
            return None if limit is None else max(1, round(limit * limits.phase_end_fraction))

        fewer = replace(
            limits,
            perplexity_windows=part(limits.perplexity_windows),
            retrieval_queries=part(limits.retrieval_queries),
            generation_records=part(limits.generation_records),
            choice_windows=part(limits.choice_windows),
        )
        return cls.build(replace(config, probes=fewer), tokenizer)

    @property
    def notes(self) -> list[str]:
        """One line for each probe that has nothing to measure, to be shown at the start."""
        return [f"probe {p.name} is absent: {p.reason}" for p in self.probes if p.reason]

    def run(self, evaluator: Evaluator, only: Collection[str] | None = None) -> list[ProbeResult]:
        """Run the probes whose name, kind or phase is in `only` (None: all), and the totals.

        A probe that raises is reported as failed; the others go on. A total is made if every probe
        of its kind ran.
        """
        results: list[ProbeResult] = []
        for kind in dict.fromkeys(probe.kind for probe in self.probes):
            members = [probe for probe in self.probes if probe.kind == kind]
            chosen = [probe for probe in members if only is None or _named(probe, only)]
            found = [_run(probe, evaluator) for probe in chosen]
            if kind in TOTALS and len(chosen) == len(members):
                found += [only_finite(total) for total in TOTALS[kind](found)]
            results += found
        return results


def run_probes(
    evaluator: Evaluator,
    config: Config,
    tokenizer: "PreTrainedTokenizerFast",
    only: Collection[str] | None = None,
) -> list[ProbeResult]:
    """Build the suite of the (scaled) plan and run it once."""
    return ProbeSuite.build(config, tokenizer).run(evaluator, only)


def check_heldout(config: Config) -> list[str]:
    """One line for each phase without held-out data; looks at names and sizes of files only."""
    objectives = ("generative", "causal", "retrieval", "choice")
    return [
        f"phase {held.phase} will not be probed: {held.reason}"
        for held in heldout_sets(config, objectives)
        if held.reason
    ]


def _named(probe: Prepared, only: Collection[str]) -> bool:
    return not {probe.name, probe.kind, probe.phase}.isdisjoint(only)


def _run(probe: Prepared, evaluator: Evaluator) -> ProbeResult:
    try:
        result = only_finite(probe.run(evaluator))
    except Exception as error:  # a probe never ends a run; what went wrong is shown
        told = error if isinstance(error, RunError | UserError) else repr(error)
        reason = (str(told) or repr(error)).splitlines()[0]
        result = ProbeResult(
            probe.name, probe.phase, {}, [], probe.kind, probe.objective, "failed", reason
        )
    if result.status == "failed" and evaluator.rank == 0:
        log.warning("probe %s failed: %s", result.name, result.reason)
    return result
