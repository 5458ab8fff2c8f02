"""Causal language modelling: cross entropy on every token of a text, its end included."""

from curriculum.config import Phase
from curriculum.objectives.base import TokenObjective


class Causal(TokenObjective):
    """The windows of `text` records weigh every predicted position alike."""

    def __init__(self, phase: Phase) -> None:
        pass
