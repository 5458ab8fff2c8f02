"""Choice evals: forward-only evaluations of packed choice sets while a phase trains.

    figures   accuracy, log-likelihood, KL, Brier, calibration error, and their formulas
    scorers   functions that score predictions: the shipped `score`, and any of a user's
    storage   a scored step on disk: `predictions.arrow`, then `metrics.json`
    sets      packed directories, or files of records that are packed into the cache
    run       what is due, its forwards, its score: the hook that the training loop calls
    diagram   the reliability diagram of a set, before and after
    rescore   steps whose scorer failed, scored later
    summary   all scored steps of a run, for its report

`choice_eval.import_path: curriculum.choice_evals.score` names the shipped scorer.
"""

from curriculum.choice_evals.scorers import score

__all__ = ["score"]
