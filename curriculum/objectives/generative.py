"""Generative fine-tuning: cross entropy on assistant content and its end-of-turn."""

from curriculum.objectives.base import TokenObjective


class Generative(TokenObjective):
    """The loss weights of the rendered conversations say which tokens are trained."""
