"""What a run did, kept beside what was planned: ledger, metrics, tracker, report, dashboard.

- `ledger`: compute per phase, planned and realised, and its shares by phase, role and objective;
- `metrics`: `metrics.jsonl`, one row a step, the record that needs no other program;
- `tracker`: the same figures in MLflow, never at the price of the training;
- `report`: the tables at a run's end and the self-contained `report.html`;
- `dashboard`: MLflow's UI on a run's store.

Nothing here knows torch, and MLflow is imported only by what uses it.
"""
