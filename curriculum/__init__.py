"""A phased curriculum orchestrator for multi-objective supervised fine-tuning.

One plan says which phases train a model, in what order, on what data, with what objective and
what budget. `python -m curriculum run +plan=corrective` checks the plan, prints its budget, trains
it, resumes it and shows what each phase did to every capability.

The rooms, from the outside in:

- `cli`, `runner`: the verbs, and the loop over phases;
- `plan`: the graph, its budget, its keys and its checks (knows neither torch nor transformers);
- `data`: records, rendering, packed windows and their order (no torch);
- `objectives`: what the loss is;
- `engine`: one exact optimizer step over sharded parameters, and checkpoints;
- `probes`: forward-only evaluations;
- `tracking`: the ledger, the tracker and the report.
"""

__version__ = "0.1.0"
