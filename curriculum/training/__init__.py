"""Training of a checked plan, from its first phase to the model at its end.

`run` walks over the phases; it is the place to begin reading. `opening` builds the engine where the
run goes on, `steps` takes the steps of one phase, `evaluations` measures between them, `finished`
knows where the ends of phases lie and which of them this run may train.
"""
