"""The demo corpus: an invented world, generated from a seed, for every phase of the shipped plans.

`generate` writes `ROOT/<phase>/{train,heldout}.jsonl`; `train_tokenizer` makes a word-level
tokenizer of it. Everything follows from the seed, byte for byte. The sizes below cover the shipped
plans at the demo scale without repeating a record.
"""

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from curriculum.data.abstention import assign
from curriculum.data.demo import choices, tasks, texts
from curriculum.data.demo.abstentions import BANK
from curriculum.data.demo.tokenizer import train_tokenizer
from curriculum.data.demo.world import World, make_world
from curriculum.errors import UserError

__all__ = ["PHASES", "PhaseData", "generate", "train_tokenizer"]

VERSION = 10
MARKER = "demo.json"

Record = dict[str, Any]
Draw = Callable[[World, random.Random], Record]


@dataclass(frozen=True)
class PhaseData:
    """What one phase's folder holds: the kind of record and how many of each split."""

    kind: str  # a task of `tasks`, or messages | text | rhymes | retrieval | choice
    train: int
    heldout: int
    # qa: share of unanswerable; text: towns, facts, recalls; retrieval: tiers
    options: tuple[Any, ...] = ()


PHASES: dict[str, PhaseData] = {
    "base_causal": PhaseData("rhymes", 17500, 100, (2, 2, 4)),
    "base_retrieval": PhaseData("retrieval", 3000, 300, ("school", "university", "advanced")),
    "base_tasks": PhaseData("messages", 5600, 200),
    "rag_qa": PhaseData("qa", 9000, 200, (0.1,)),
    "retrieval_university": PhaseData("retrieval", 300, 100, ("university",)),
    "instruction": PhaseData("instruction", 31000, 200),
    "causal_foundations": PhaseData("text", 3200, 100, (1, 3, 2)),
    "summarization": PhaseData("summarization", 8600, 200),
    "retrieval_advanced": PhaseData("retrieval", 300, 100, ("advanced",)),
    "causal_university": PhaseData("text", 2200, 100, (2, 4, 4)),
    "qa_mixture": PhaseData("qa", 7000, 200, (0.2,)),
    "retrieval_school": PhaseData("retrieval", 300, 100, ("school",)),
    "planning": PhaseData("planning", 2600, 200),
    "retrieval_foundations": PhaseData("retrieval", 300, 100, ("school",)),
    "causal_school": PhaseData("text", 2400, 100, (2, 2, 2)),
    "causal_advanced": PhaseData("text", 1200, 100, (4, 4, 8)),
    "calibration": PhaseData("choice", 6000, 400),
}


def generate(root: Path, seed: int) -> None:
    """Write the corpus of `seed` to `root`: one folder a phase, `train.jsonl` and `heldout.jsonl`.

    `root` appears complete or not at all. A complete corpus of the same seed is left as it is, one
    of another seed is replaced; a folder that holds anything else is refused with `UserError`.
    """
    marker = {"corpus": "demo", "seed": seed, "version": VERSION}
    if root.is_dir() and any(root.iterdir()):
        found = _marker(root)
        if found == marker:
            return
        if found.get("corpus") != "demo":
            raise UserError(
                f"data.root={root} holds files that are not the demo corpus and will not be "
                "replaced: name another folder for the demo corpus"
            )
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        world = make_world(seed)
        for phase, data in PHASES.items():
            _write_phase(unfinished / phase, phase, data, world, seed)
        (unfinished / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
        unfinished.chmod(0o755)
        _put(unfinished, root, marker)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _marker(root: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((root / MARKER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _put(unfinished: Path, root: Path, marker: dict[str, Any]) -> None:
    """Move `unfinished` to `root`; an equal corpus put there meanwhile by another process wins."""
    if root.is_dir() and any(root.iterdir()) and _marker(root) != marker:
        shutil.rmtree(root)
    try:
        unfinished.rename(root)
    except OSError:
        if _marker(root) != marker:
            raise


def _write_phase(folder: Path, phase: str, data: PhaseData, world: World, seed: int) -> None:
    folder.mkdir()
    seen: set[bytes] = set()
    taken: set[Any] = set()
    # Held-out first: training then leaves out what it would share with it.
    for split, count in (("heldout", data.heldout), ("train", data.train)):
        rng = random.Random(f"{seed}/{phase}/{split}")
        if data.kind == "retrieval":
            records = _retrieval(data, world, rng, count, split, taken)
        else:
            records = _distinct(_draws(data, rng, count, split), world, rng, seen)
        with (folder / f"{split}.jsonl").open("wb") as file:
            for number, record in enumerate(records):
                if data.kind in ("qa", "retrieval"):
                    record["id"] = f"{phase}-{split}-{number:05d}"
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))


def _retrieval(
    data: PhaseData, world: World, rng: random.Random, count: int, split: str, taken: set[Any]
) -> list[Record]:
    records: list[Record] = []
    for tier in data.options:
        share = count // len(data.options)
        records += texts.retrieval(world, rng, tier, share, taken, unique=split == "heldout")
    rng.shuffle(records)
    return records


def _draws(data: PhaseData, rng: random.Random, count: int, split: str) -> list[Draw]:
    """One draw for each record of a split, in order."""
    if data.kind in ("text", "rhymes"):
        towns, facts, recalls = data.options

        def chronicle(world: World, rng: random.Random) -> Record:
            return texts.chronicle(world, rng, towns, facts, recalls)

        kinds: tuple[Draw, ...] = (chronicle,)
        if data.kind == "rhymes":
            kinds = (texts.rhyme, chronicle)
        return [kinds[number % len(kinds)] for number in range(count)]
    if data.kind == "qa":
        # A tenth of a held-out set would be too few abstentions to measure.
        missing = round(count * (data.options[0] if split == "train" else 0.25))
        slots: list[str | None] = [*assign(missing, rng, BANK), *[None] * (count - missing)]
        rng.shuffle(slots)
        return [_qa_draw(paraphrase) for paraphrase in slots]
    if data.kind == "choice":
        return [choices.choice] * count
    if data.kind == "messages":
        answered = _qa_draw(None)
        basic = (
            answered,
            partial(tasks.instruction, basic=True),
            answered,
            partial(tasks.summarization, basic=True),
            answered,
            partial(tasks.planning, basic=True),
            partial(tasks.summarization, basic=True),
            partial(tasks.planning, basic=True),
        )
        draws = [_chat_draw(basic[number % len(basic)]) for number in range(count)]
        # a few abstentions, so that the base has heard of them: every 64th question
        asked = [number for number in range(count) if basic[number % len(basic)] is answered][::64]
        for number, paraphrase in zip(asked, assign(len(asked), rng, BANK), strict=True):
            draws[number] = _chat_draw(_qa_draw(paraphrase))
        return draws
    return [getattr(tasks, data.kind)] * count


def _qa_draw(paraphrase: str | None) -> Draw:
    return lambda world, rng: tasks.qa(world, rng, paraphrase)


def _chat_draw(draw: Draw) -> Draw:
    return lambda world, rng: tasks.chat(draw(world, rng))


def _distinct(
    draws: list[Draw], world: World, rng: random.Random, seen: set[bytes]
) -> Iterator[Record]:
    """Draw each record until it is new up to case and white space; remember it in `seen`."""
    for draw in draws:
        while True:
            record = draw(world, rng)
            key = orjson.dumps(record).lower()  # texts have single spaces by construction
            if key not in seen:
                break
        seen.add(key)
        yield record
