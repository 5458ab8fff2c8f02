"""Question-answering sets of any size, made from a seed, for tests of data tools."""

import random
from pathlib import Path
from typing import Any

import orjson

ABSTENTION = "The provided passages do not contain the answer to this question."

_STARTS = (
    "Bel",
    "Cor",
    "Dra",
    "Far",
    "Gal",
    "Har",
    "Kel",
    "Lor",
    "Mar",
    "Nor",
    "Pel",
    "Ras",
    "Tor",
)
_MIDDLES = (
    "a",
    "e",
    "i",
    "o",
    "u",
    "an",
    "en",
    "in",
    "on",
    "ar",
    "er",
    "ir",
    "or",
    "al",
    "el",
    "ol",
)
_ENDS = (
    "dale",
    "ford",
    "gate",
    "ham",
    "land",
    "mere",
    "moor",
    "port",
    "stead",
    "ton",
    "vale",
    "wick",
)
_FIRST = (
    "Ada",
    "Bruno",
    "Clara",
    "Dario",
    "Edith",
    "Felix",
    "Greta",
    "Hugo",
    "Irma",
    "Jonas",
    "Mila",
)
_KINDS = (
    ("founder", "Who founded {place}?", "{place} was founded by {value} after a long winter."),
    ("mayor", "Who is the mayor of {place}?", "The council chose {value} as mayor of {place}."),
    ("river", "Which river runs through {place}?", "The river {value} runs through {place}."),
    ("year", "When was {place} rebuilt?", "After the great fire {place} was rebuilt in {value}."),
    ("people", "How many people live in {place}?", "{place} is home to {value} people today."),
)
_ASIDES = (
    "Travellers praise the bread of {place}, which is baked before sunrise.",
    "In autumn the market of {place} draws visitors from all over the county.",
    "The old road to {place} was paved again some years ago; it is narrow and steep.",
    "A small museum in {place} shows tools, coins and a fine collection of maps.",
    "Storms have damaged the harbour of {place} more than once, records show.",
    "The school of {place} has a garden that pupils have looked after for generations.",
)


def dominant_set(records: int, abstentions: int, seed: int = 0) -> list[dict[str, Any]]:
    """`records` qa records, of which `abstentions` share one target, `ABSTENTION`.

    Every question differs. The others' answers stand word for word in one passage of several, are
    not in the question, and are shared by few. No record carries a flag; each has an `id`.
    """
    rng = random.Random(f"dominant/{seed}")
    missing = set(rng.sample(range(records), abstentions))
    rows = []
    for number in range(records):
        place = f"{_name(rng)} {100_000 + number}"  # unlike any year
        kind, other = rng.sample(_KINDS, 2)
        passages = [
            _passage(rng, place, other[2].format(place=place, value=_value(rng, other[0]))),
            *(_passage(rng, _name(rng), "") for _ in range(rng.randint(1, 3))),
        ]
        answer = ABSTENTION
        if number not in missing:
            answer = _value(rng, kind[0])
            passages.append(_passage(rng, place, kind[2].format(place=place, value=answer)))
        rng.shuffle(passages)
        rows.append(
            {
                "id": f"q{number:06d}",
                "question": kind[1].format(place=place),
                "answer": answer,
                "passages": passages,
            }
        )
    return rows


def write_dominant_set(
    path: Path, records: int = 74709, abstentions: int = 20606, seed: int = 0
) -> Path:
    """`dominant_set` as JSON lines: by default with the counts of the set that started it all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = dominant_set(records, abstentions, seed)
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def _name(rng: random.Random) -> str:
    return rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(_ENDS)


def _value(rng: random.Random, kind: str) -> str:
    if kind == "year":
        return str(rng.randint(1100, 1999))
    if kind == "people":
        return f"{rng.randint(2, 99)},{rng.randint(0, 999):03d}"
    if kind == "river":
        return rng.choice(_STARTS) + rng.choice(_MIDDLES) + rng.choice(_MIDDLES) + "n"
    return f"{rng.choice(_FIRST)} {_name(rng).capitalize()}son"


def _passage(rng: random.Random, place: str, fact: str) -> str:
    sentences = [aside.format(place=place) for aside in rng.sample(_ASIDES, rng.randint(2, 5))]
    if fact:
        sentences.insert(rng.randrange(len(sentences) + 1), fact)
    return " ".join(sentences)


def extractive(number: int, **more: Any) -> dict[str, Any]:
    """A record whose answer stands in the second of three passages, nowhere else."""
    return {
        "passages": [f"Mill {number} grinds.", f"The miller is Old Tom {number}.", "It rains."],
        "question": f"Who is the miller of Mill {number}?",
        "answer": f"Old Tom {number}",
        **more,
    }


def rebuilt(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Any:
    """The records and the report that `data abstain` makes of `rows`, `share=0.1` by default."""
    from curriculum.data.abstention.command import main

    source, out = folder / "in.jsonl", folder / "out.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    given = {"share": 0.1, "overwrite": "true", "cache_dir": folder / "cache"} | options
    assert main([str(source), str(out), *(f"{key}={value}" for key, value in given.items())]) == 0
    return read(out), orjson.loads(out.with_name("out.jsonl.report.json").read_bytes())


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line]
