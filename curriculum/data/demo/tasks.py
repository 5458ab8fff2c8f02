"""Records of the generative tasks: grounded questions, instructions, summaries, plans.

Each builder draws one record of a world from a random stream. Targets follow from the prompt by
rules that a very small model can learn: copy the right value, reorder, restate, fill in a form.
"""

import random
from collections.abc import Callable
from typing import Any

from curriculum.data.abstention import fill
from curriculum.data.demo.world import (
    AGES,
    DISTINCT_RELATIONS,
    RELATIONS,
    SEASONS,
    Fact,
    World,
    draw_facts,
)

Record = dict[str, Any]


def qa(world: World, rng: random.Random, paraphrase: str | None) -> Record:
    """A question about one fact, with two passages on two towns and two different relations.

    With a paraphrase of the abstention bank no passage tells the relation that is asked: for a
    town that one of them names, or for another one.
    """
    towns, relations = rng.sample(world.towns, 3), rng.sample(DISTINCT_RELATIONS, 3)
    facts = [
        Fact(town, relation, world.value(relation, rng, town))
        for town, relation in zip(towns[:2], relations, strict=False)
    ]
    if paraphrase is None:
        asked = rng.choice(facts)
        answer = asked.says
    else:
        asked = Fact(rng.choice(towns), relations[2], "")
        answer = fill(paraphrase, entity=asked.town, question=asked.topic)
    return {
        "question": asked.asks,
        "answer": answer,
        "passages": [fact.says for fact in facts],
        "answerable": paraphrase is None,
    }


def _some_words(world: World, rng: random.Random, count: int) -> list[str]:
    pool = world.values[rng.choice(sorted(world.values))]
    return rng.sample(pool, count)


def _restate(world: World, rng: random.Random) -> tuple[str, str]:
    fact = draw_facts(world, rng.choice(world.towns), 1, rng)[0]
    other = Fact(fact.town, fact.relation, fact.value, fact.wording + 1)
    return f"Say this in other words: {fact.says}", other.says


def _ask(world: World, rng: random.Random) -> tuple[str, str]:
    fact = draw_facts(world, rng.choice(world.towns), 1, rng)[0]
    return f"Turn this into a question: {fact.says}", fact.asks


def _reverse(world: World, rng: random.Random) -> tuple[str, str]:
    words = _some_words(world, rng, 3)
    return f"Write in reverse order: {', '.join(words)}.", f"{', '.join(reversed(words))}."


def _repeat(world: World, rng: random.Random) -> tuple[str, str]:
    words = _some_words(world, rng, 2)
    return f"Write twice: {' and '.join(words)}.", f"{' and '.join(words)}, {' and '.join(words)}."


def _swap(world: World, rng: random.Random) -> tuple[str, str]:
    one, two = rng.sample(world.towns, 2)
    season = rng.choice(SEASONS)
    return (
        f"Swap the towns: {one} visits {two} in {season}.",
        f"{two} visits {one} in {season}.",
    )


def _select(world: World, rng: random.Random) -> tuple[str, str]:
    relation = rng.choice(RELATIONS)
    one, two = rng.sample(world.towns, 2)
    first = Fact(one, relation, world.value(relation, rng, one, two), rng.randrange(2))
    second = Fact(two, relation, world.value(relation, rng, one, two, first.value), first.wording)
    wanted = rng.choice((first, second))
    return (
        f"Which is the town {wanted.which}? {first.says} {second.says}",
        f"The town {wanted.which} is {wanted.town}.",
    )


def _letter(world: World, rng: random.Random) -> tuple[str, str]:
    one, two = rng.sample(world.values["people"], 2)
    town, good = rng.choice(world.towns), rng.choice(world.values["goods"])
    return (
        f"Write a letter from {one} to {two} of {town} to ask for {good}.",
        f"Dear {two} of {town}, please send some {good} soon. Yours, {one}.",
    )


_INSTRUCTIONS: tuple[Callable[[World, random.Random], tuple[str, str]], ...] = (
    _restate,
    _ask,
    _reverse,
    _repeat,
    _swap,
    _select,
    _letter,
)


def instruction(world: World, rng: random.Random, basic: bool = False) -> Record:
    """One of seven kinds of request about words, towns and people; `basic`: of the first three."""
    kinds = _INSTRUCTIONS[:3] if basic else _INSTRUCTIONS
    request, response = rng.choice(kinds)(world, rng)
    return {"instruction": request, "response": response}


def _filler(world: World, rng: random.Random) -> str:
    season, age, person = rng.choice(SEASONS), rng.choice(AGES), rng.choice(world.values["people"])
    return rng.choice(
        (
            f"Many travellers come in {season}.",
            f"The old people still speak of the age of {age}.",
            f"In {season} the roads are often closed.",
            f"A song about {person} is sung in {season}.",
            f"Little is left from the age of {age}.",
        )
    )


def summarization(world: World, rng: random.Random, basic: bool = False) -> Record:
    """A report on one town with asides; the summary gives its three facts in a fixed order.

    It ends with who wrote the report and when, unless it is `basic`.
    """
    town = rng.choice(world.towns)
    facts = draw_facts(world, town, 3, rng, wording=1)
    lines = [fact.says for fact in facts] + [_filler(world, rng) for _ in range(2)]
    rng.shuffle(lines)
    ordered = sorted(facts, key=lambda fact: RELATIONS.index(fact.relation))
    parts = [f"the {fact.relation.name} {fact.value}" for fact in ordered]
    summary = f"{town} has {', '.join(parts[:-1])} and {parts[-1]}."
    if not basic:
        writer = f"{rng.choice(world.values['people'])} wrote this in {rng.choice(SEASONS)}."
        lines.append(writer)
        summary += f" {writer}"
    return {
        "document": f"This is the report on {town}. {' '.join(lines)}",
        "summary": summary,
    }


def _carry(world: World, rng: random.Random) -> tuple[str, list[str]]:
    start, end = rng.sample(world.towns, 2)
    good, river = rng.choice(world.values["goods"]), rng.choice(world.values["rivers"])
    way, leave = rng.choice(
        (
            (f"by boat on the {river}", f"Sail down the {river} to {end}"),
            ("by cart", f"Drive the cart to {end}"),
            ("by mule", f"Lead the mule to {end}"),
        )
    )
    return (
        f"bring {good} from {start} to {end} {way}",
        [
            f"Load the {good} in {start}",
            leave,
            f"Sell the {good} in {end}",
            "Return if the market is not found",
        ],
    )


def _feast(world: World, rng: random.Random) -> tuple[str, list[str]]:
    town, person = rng.choice(world.towns), rng.choice(world.values["people"])
    good, season = rng.choice(world.values["goods"]), rng.choice(SEASONS)
    return (
        f"hold a feast for {person} in {town} in {season} with {good}",
        [
            f"Invite {person} to {town}",
            f"Buy the {good} before {season}",
            f"Ask in {town} if the house is not known",
            f"Welcome {person} with {good}",
        ],
    )


def _paint(world: World, rng: random.Random) -> tuple[str, list[str]]:
    town, person = rng.choice(world.towns), rng.choice(world.values["people"])
    colour = rng.choice(world.values["colours"])
    return (
        f"paint the gate of {town} {colour} for {person}",
        [
            f"Ask {person} for leave",
            f"Mix the {colour} paint",
            f"Paint the gate of {town} {colour}",
            f"Show it to {person} if the price is not given",
        ],
    )


def _plant(world: World, rng: random.Random) -> tuple[str, list[str]]:
    town, tree = rng.choice(world.towns), rng.choice(world.values["trees"])
    river, season = rng.choice(world.values["rivers"]), rng.choice(SEASONS)
    return (
        f"plant a row of {tree} by the {river} near {town} in {season}",
        [
            f"Buy young {tree} in {town}",
            f"Walk to the {river}",
            f"Plant the {tree} in {season}",
            f"Water the {tree} if it is not told otherwise",
        ],
    )


_PLANS = (_carry, _feast, _paint, _plant)


def planning(world: World, rng: random.Random, basic: bool = False) -> Record:
    """A request of one of four kinds and its plan of four steps; `basic`: of the first two."""
    kinds = _PLANS[:2] if basic else _PLANS
    request, steps = rng.choice(kinds)(world, rng)
    plan = "\n".join(f"{number}. {step}." for number, step in enumerate(steps, 1))
    return {"request": f"{request}.", "plan": plan}


def chat(record: Record) -> Record:
    """The same record as a conversation of one user and one assistant turn."""
    if "question" in record:
        numbered = [f"[{n}] {text}" for n, text in enumerate(record["passages"], 1)]
        user = f"Question: {record['question']}\n\n" + "\n".join(numbered)
        assistant = record["answer"]
    elif "instruction" in record:
        user, assistant = record["instruction"], record["response"]
    elif "document" in record:
        user, assistant = f"Summarize:\n\n{record['document']}", record["summary"]
    else:
        user, assistant = f"Plan: {record['request']}", record["plan"]
    turns = (("user", user), ("assistant", assistant))
    return {"messages": [{"role": role, "content": content} for role, content in turns]}
