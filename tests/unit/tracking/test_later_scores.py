"""Metrics of choice evals that are scored after a run has ended: added where they belong, once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from curriculum.compose import compose
from curriculum.config import Run
from curriculum.tracking.journal import track_later
from curriculum.tracking.mlflow_tracker import MlflowTracker

KEY = "choice_eval/quiz/accuracy"


@pytest.mark.parametrize("finished", [True, False])
def test_late_metrics_fill_the_gap_and_nothing_is_logged_twice(
    make_tracker: Callable[..., MlflowTracker], run_dir: Path, finished: bool
) -> None:
    config = replace(compose(["+plan=corrective"]), run=Run(dir=str(run_dir)))
    before = make_tracker()
    before.start_plan({})
    for step in (10, 30):
        before.log_plan({KEY: step / 100}, step)
    before.finish("KILLED")
    if finished:
        (run_dir / "finished.json").write_text("{}")
    diagram = run_dir / "reliability_quiz.svg"
    diagram.write_text("<svg/>")
    scored = [
        ("quiz", 30, {"step": 30, "accuracy": 0.9, "scorer": "mine.score"}),
        ("quiz", 20, {"step": 20, "accuracy": 0.2, "scorer": "mine.score", "rows": 4}),
    ]
    for _ in range(2):
        track_later(config, before.ids, scored, [diagram])
    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    run = client.get_run(before.ids["parent"])
    history = client.get_metric_history(run.info.run_id, KEY)
    assert sorted((m.step, m.value) for m in history) == [(10, 0.1), (20, 0.2), (30, 0.3)]
    assert len(client.get_metric_history(run.info.run_id, "choice_eval/quiz/rows")) == 1
    assert run.info.status == ("FINISHED" if finished else "KILLED")
    assert diagram.name in [one.path for one in client.list_artifacts(run.info.run_id)]
