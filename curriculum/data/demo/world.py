"""The invented world: names, things, and the relations between a town and a value.

A world has names but no fixed facts. Every record draws its facts anew ("a chronicle of its own"),
so that a question can be answered from its passages only and never from memory.
"""

import random
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


TOWNS, PEOPLE, RIVERS = 64, 32, 20

GOODS = _words(
    "salt wool honey copper cheese glass paper rope leather pepper amber silk cider tea ink oil"
)
ANIMALS = _words(
    "fox owl heron otter wolf bear raven stag badger swan hare lynx falcon pike crane boar"
)
COLOURS = _words(
    "red blue green white black yellow grey brown purple orange golden silver pink scarlet "
    "violet crimson"
)
TREES = _words(
    "oak birch willow elm ash pine maple cedar linden poplar alder yew hazel beech walnut larch"
)
SEASONS = _words("spring summer autumn winter")
AGES = _words("frost plenty drought peace storms kings")

_ONSETS = _words("b d f g h k l m n p r s t v z br dr gr kr tr st sk th sh")
_VOWELS = _words("a e i o u")
_CODAS = _words("l n r s th k m x")


# Wordings of a fact: `t` the town, `r` the relation, `v` the value. Question and statement
# share the relation's word, and the value comes last: a small model finds it by looking back.
SAYS = ("The %(r)s of %(t)s is %(v)s.", "%(t)s has the %(r)s %(v)s.")
ASKS = ("What is the %(r)s of %(t)s?", "Which %(r)s does %(t)s have?")
TOPIC = "the %(r)s of %(t)s"
WHICH = "with the %(r)s %(v)s"


@dataclass(frozen=True)
class Relation:
    """What a value is to a town."""

    name: str
    kind: str  # which of the world's value lists it draws from


RELATIONS: tuple[Relation, ...] = (
    Relation("ruler", "people"),
    Relation("founder", "people"),
    Relation("ware", "goods"),
    Relation("river", "rivers"),
    Relation("emblem", "animals"),
    Relation("colour", "colours"),
    Relation("tree", "trees"),
    Relation("ally", "towns"),
)

# Relations whose values no other relation shares: whether a passage answers is seen by its value.
DISTINCT_RELATIONS = tuple(
    relation
    for relation in RELATIONS
    if relation.kind != "towns" and [r.kind for r in RELATIONS].count(relation.kind) == 1
)


@dataclass(frozen=True)
class World:
    """The names of one seed and the lists that values are drawn from."""

    towns: tuple[str, ...]
    values: dict[str, tuple[str, ...]]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All names and things."""
        return tuple(word for values in self.values.values() for word in values)

    def value(self, relation: Relation, rng: random.Random, *avoid: str) -> str:
        """A random value for a relation, none of `avoid`."""
        while (value := rng.choice(self.values[relation.kind])) in avoid:
            pass
        return value


class Fact(NamedTuple):
    """One relation of one town, with a chosen wording for all its phrases."""

    town: str
    relation: Relation
    value: str
    wording: int = 0

    def _fill(self, template: str) -> str:
        return template % {"t": self.town, "r": self.relation.name, "v": self.value}

    @property
    def says(self) -> str:
        """The fact as a sentence."""
        return self._fill(SAYS[self.wording % len(SAYS)])

    @property
    def asks(self) -> str:
        """The question whose answer is the value."""
        return self._fill(ASKS[self.wording % len(ASKS)])

    @property
    def topic(self) -> str:
        """What is asked, as a noun phrase."""
        return self._fill(TOPIC)

    @property
    def which(self) -> str:
        """What tells the town apart, as words that follow "the town"."""
        return self._fill(WHICH)


def _names(count: int, rng: random.Random, taken: set[str]) -> tuple[str, ...]:
    names: list[str] = []
    while len(names) < count:
        parts = [rng.choice(_ONSETS), rng.choice(_VOWELS), rng.choice(_CODAS)]
        parts += [rng.choice(_ONSETS), rng.choice(_VOWELS), rng.choice([*_CODAS, "", ""])]
        name = "".join(parts).capitalize()
        if name not in taken:
            taken.add(name)
            names.append(name)
    return tuple(names)


def make_world(seed: int) -> World:
    """The world of a seed: every name is one word and belongs to one town, person or river."""
    rng = random.Random(f"{seed}/world")
    taken = {word.capitalize() for word in (*GOODS, *ANIMALS, *COLOURS, *TREES)}
    towns = _names(TOWNS, rng, taken)
    values = {
        "towns": towns,
        "people": _names(PEOPLE, rng, taken),
        "rivers": _names(RIVERS, rng, taken),
        "goods": tuple(GOODS),
        "animals": tuple(ANIMALS),
        "colours": tuple(COLOURS),
        "trees": tuple(TREES),
    }
    return World(towns, values)


def draw_facts(
    world: World, town: str, count: int, rng: random.Random, wording: int | None = None
) -> list[Fact]:
    """`count` facts of different relations about one town, in one wording or in mixed ones."""
    return [
        Fact(
            town,
            relation,
            world.value(relation, rng, town),
            rng.randrange(len(SAYS)) if wording is None else wording,
        )
        for relation in rng.sample(RELATIONS, count)
    ]
