"""Records without a conversation: running text in four lengths, retrieval groups in three tiers.

Text: a chronicle tells facts and then goes over some of them again, so that predicting it well
takes looking back: the same skill that answering from passages takes.

Retrieval: a query has keys (a town and a relation, or two relations, or two of both), its
positive holds them all, and each of the two hard negatives misses one and shares the other words.
Within a held-out set no two documents have the same keys: each query has one right document.
"""

import random
from collections.abc import Callable
from typing import Any

from curriculum.data.demo.world import AGES, RELATIONS, SEASONS, Fact, Relation, World, draw_facts

Record = dict[str, Any]


def chronicle(world: World, rng: random.Random, towns: int, facts: int, recalls: int) -> Record:
    """`towns` towns with `facts` facts each, then `recalls` of them asked and told again."""
    told: list[Fact] = []
    lines = [f"Chronicle of the age of {rng.choice(AGES)}."]
    for town in rng.sample(world.towns, towns):
        own = draw_facts(world, town, facts, rng)
        told += own
        lines += [fact.says for fact in own]
    for fact in rng.sample(told, recalls):
        lines.append(rng.choice((f"{fact.asks} {fact.says}", f"Again: {fact.says}")))
    return {"text": " ".join(lines)}


def rhyme(world: World, rng: random.Random) -> Record:
    """A few words said three times: the plainest thing that looking back predicts."""
    words = rng.choices(world.words, k=rng.randint(3, 8))
    return {"text": " ".join(["Rhyme:", *(" ".join(words) + "." for _ in range(3))])}


Group = tuple[str, str, list[str], list[tuple[object, ...]]]  # query, positive, negatives, keys


def _other(items: tuple[Any, ...] | list[str], rng: random.Random, *avoid: object) -> Any:
    while (item := rng.choice(items)) in avoid:
        pass
    return item


def _school(world: World, rng: random.Random) -> Group:
    town, relation = rng.choice(world.towns), rng.choice(RELATIONS)
    keys = [
        (town, relation.name),
        (_other(world.towns, rng, town), relation.name),
        (town, _other(RELATIONS, rng, relation).name),
    ]

    def document(key: tuple[str, str]) -> str:
        kind = next(item for item in RELATIONS if item.name == key[1])
        return f"It is written: {_fact(world, key[0], kind, rng).says}"

    positive, first, second = (document(key) for key in keys)
    return _fact(world, town, relation, rng).asks, positive, [first, second], list(keys)


def _fact(world: World, town: str, relation: Relation, rng: random.Random) -> Fact:
    return Fact(town, relation, world.value(relation, rng, town), rng.randrange(2))


def _university(world: World, rng: random.Random) -> Group:
    towns, relations = rng.sample(world.towns, 2), rng.sample(RELATIONS, 3)
    season = rng.choice(SEASONS)
    told = [(0, 0), (0, 1)], [(1, 0), (1, 1)], [(0, 0), (0, 2)]
    return _pairs(
        world, rng, towns, relations, told, f"In {season}: ", f"From the book of {season}: "
    )


def _advanced(world: World, rng: random.Random) -> Group:
    towns, relations = rng.sample(world.towns, 3), rng.sample(RELATIONS, 3)
    told = [(0, 0), (1, 1)], [(0, 0), (2, 1)], [(0, 2), (1, 1)]
    return _pairs(world, rng, towns, relations, told, "", "A report on two towns. ")


def _pairs(
    world: World,
    rng: random.Random,
    towns: list[str],
    relations: list[Relation],
    told: tuple[list[tuple[int, int]], ...],
    asking: str,
    telling: str,
) -> Group:
    """A group whose documents tell two facts each, given as indices of towns and relations."""

    def facts(pairs: list[tuple[int, int]]) -> list[Fact]:
        drawn = [_fact(world, towns[town], relations[kind], rng) for town, kind in pairs]
        rng.shuffle(drawn)
        return drawn

    documents = [telling + " ".join(fact.says for fact in facts(pairs)) for pairs in told]
    query = asking + " ".join(fact.asks for fact in facts(told[0]))
    keys = [
        (asking, *sorted((towns[town], relations[kind].name) for town, kind in pairs))
        for pairs in told
    ]
    return query, documents[0], documents[1:], list(keys)


TIERS: dict[str, Callable[[World, random.Random], Group]] = {
    "school": _school,
    "university": _university,
    "advanced": _advanced,
}


def retrieval(
    world: World, rng: random.Random, tier: str, count: int, taken: set[Any], unique: bool
) -> list[Record]:
    """`count` groups of a tier in which no document has keys that are in `taken`.

    With `unique` (held-out sets), no two documents have the same keys, and the keys of the
    queries are added to `taken`, so that training, drawn later, never holds their documents.
    """
    records: list[Record] = []
    used: set[Any] = set()
    queries: set[Any] = set()
    while len(records) < count:
        query, positive, negatives, keys = TIERS[tier](world, rng)
        if not taken.isdisjoint(keys):
            continue
        if unique and (len(set(keys)) < 3 or not used.isdisjoint(keys)):
            continue
        used.update(keys)
        records.append({"query": query, "positive": positive, "negatives": negatives})
        if unique:
            queries.add(keys[0])
    taken |= queries
    return records
