"""Multiple-choice records whose answers are not all certain.

Three lines that end on a letter each, and a question. Of the lines that tell what is asked each is
as good an answer as the other: one such line makes the answer certain, two divide it, and where
there is none every letter deserves a third. So a model has to know how sure it may be, not only
which letter is best.
"""

import random
from typing import Any

from curriculum.data.demo.world import RELATIONS, Fact, World

Record = dict[str, Any]

LETTERS = ("A", "B", "C")

# how many of the lines tell what is asked, and how often each number occurs
TELLING = (1, 1, 1, 1, 2, 2, 0, 0)

_HAS = 1  # the wording that opens with the town, in lines and question alike


def choice(world: World, rng: random.Random) -> Record:
    """One question on a town. Every line that does not tell it is on another town."""
    telling = rng.choice(TELLING)
    town, *others = rng.sample(world.towns, len(LETTERS) + 1)
    relation = rng.choice(RELATIONS)
    values = rng.sample([v for v in world.values[relation.kind] if v != town], telling)
    facts = [Fact(town, relation, value, _HAS) for value in values]
    for other in others[: len(LETTERS) - telling]:
        kind = rng.choice(RELATIONS)
        facts.append(Fact(other, kind, world.value(kind, rng, other, town), _HAS))
    places = rng.sample(range(len(LETTERS)), len(LETTERS))
    lines = [
        f"{facts[place].says.removesuffix('.')} ({letter})."
        for letter, place in zip(LETTERS, places, strict=True)
    ]
    record: Record = {
        "prompt": " ".join([*lines, Fact(town, relation, "", _HAS).asks]),
        "choices": list(LETTERS),
    }
    if telling == 1:
        return record | {"answer": LETTERS[places.index(0)]}
    likely = [place < telling if telling else True for place in places]
    return record | {"target_probs": [float(one) / sum(likely) for one in likely]}
