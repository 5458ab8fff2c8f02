"""One exact optimizer step over sharded parameters, forward-only services, and checkpoints.

The engine knows heads (`rows`, `embed`, `logits`), never objectives: an objective hands it a
callable that turns what a head gives into a sum of weighted losses and a sum of weights.
`model.TrainModel` is the FSDP root; every use of a weight goes through its forward.
"""
