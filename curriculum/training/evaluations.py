"""What a run measures of its weights while it trains: probes, and choice evals within phases."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from curriculum.choice_evals.run import ChoiceEvals
from curriculum.config import Config
from curriculum.engine.distributed import World
from curriculum.engine.evaluate import Evaluator
from curriculum.engine.model import TrainModel
from curriculum.faults.signals import Interrupted, StopRequest
from curriculum.probes import ProbeSuite
from curriculum.tracking.journal import Journal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Evaluations:
    """Held-out data and choice sets, opened, and the model that they are put to.

    `suite` runs at both ends of a plan, `brief` between its phases, if at all. Every rank makes
    the same calls; each raises `Interrupted`, on every rank at once.
    """

    suite: ProbeSuite
    brief: ProbeSuite | None
    choices: ChoiceEvals
    evaluator: Evaluator

    @classmethod
    def build(
        cls,
        config: Config,
        keys: Mapping[str, str],
        tokenizer: "PreTrainedTokenizerFast",
        model: TrainModel,
        ranks: World,
        stop: StopRequest,
    ) -> "Evaluations":
        """`config` is scaled; `keys` are those of its phases."""
        with suppress(Interrupted), stop.interruptible():  # it may read and tokenize for minutes
            suite = ProbeSuite.build(config, tokenizer)
            brief = ProbeSuite.brief(config, tokenizer) if config.probes.at_phase_end else None
            choices = ChoiceEvals.build(config, keys, tokenizer, ranks, stop)
        ranks.stop_together(stop)
        evaluator = Evaluator(model, ranks, config.probes.batch_tokens, stop)
        return cls(suite, brief, choices, evaluator)

    def probe(self, suite: ProbeSuite, name: str, step: int, journal: Journal) -> None:
        """Run a suite. `name`: the phase that has ended at this step of the run, or `START`."""
        began = time.perf_counter()
        results = suite.run(self.evaluator)
        journal.probed(results, name, step, time.perf_counter() - began)

    def evaluate(self, name: str, phase_step: int, step: int, journal: Journal) -> None:
        """The choice evals that are due where the run stands and that are not scored yet."""
        self.choices.after(name, phase_step, step, self.evaluator, journal)
