"""Abstention: how an answer says that the passages do not hold it, and sets that do so too often.

One abstention sentence repeated through a data set becomes its most frequent target by far, and a
model trained on it says that sentence to every prompt. This package rebuilds such a set.

    bank        many own-worded paraphrases, and banks that users give
    slots       what the slots of a paraphrase take from a question
    matcher     recognises the members of a bank in text
    passages    whether a passage holds an answer
    scan        the first pass over a set: a few numbers a record
    detect      which records are unanswerable, by which rule
    choose      which records go, which lose their passages, who says what
    build       the second pass: writes the set
    report      what was done, as a table and as JSON
    command     `python -m curriculum data abstain IN OUT share=0.10`
"""

from curriculum.data.abstention.bank import BANK, assign
from curriculum.data.abstention.matcher import (
    AbstentionMatcher,
    is_abstention,
    known_banks,
    matcher_for,
    normalise,
)
from curriculum.data.abstention.slots import fill

__all__ = [
    "BANK",
    "AbstentionMatcher",
    "assign",
    "fill",
    "is_abstention",
    "known_banks",
    "matcher_for",
    "normalise",
]
