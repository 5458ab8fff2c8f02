"""What a plan says: its graph, its size, its rates, its cost, its faults, its keys.

Everything here is arithmetic on the typed configuration; it knows neither torch nor transformers,
so a dry run answers at once. A run goes through it in this order: `consistency` (can it be meant?),
`graph` (what follows what), `scale` (how large), `schedule` (which rates), `budget` with `flops`
(what it costs), `checks` (what is wrong with it), `ranks` (memory of each of so many and time, by
`memory`, `activations`, `parameters` and `decoder`), `dry_run` (how it is shown), `keys` (what of
it is finished already).
"""
