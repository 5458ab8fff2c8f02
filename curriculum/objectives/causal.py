"""Causal language modelling: cross entropy on every token of a text, its end included."""

from curriculum.objectives.base import TokenObjective


class Causal(TokenObjective):
    """The windows of `text` records weigh every predicted position alike."""
