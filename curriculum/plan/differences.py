"""Why two phases have different keys: what was hashed, compared part by part up both lines.

A difference high up in a line changes every key below it, so the first one is the cause of all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from curriculum.plan.keys import KeyRecord

Chain = Mapping[str, KeyRecord]
"""Records by key: of a phase, and of all that it descends from."""

ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One value that differs. `place`: `plan.phase`, or `plan` for the weights that it starts from.

    `part` is the dotted name of the value: a phase's own as `phase.NAME`, files as `data FILE`.
    """

    place: str
    part: str
    here: Any
    there: Any


def differences(here: Chain, one: str, there: Chain, other: str) -> list[Difference]:
    """What differs between key `one` of `here` and key `other` of `there`, first causes first.

    Empty if the keys are equal. Where the lines lead to phases of different names, that is the
    difference, and what lies above is not compared.
    """
    found: list[Difference] = []
    seen: set[tuple[str, str]] = set()

    def compare(a: str, b: str) -> None:
        if a == b or (a, b) in seen:
            return
        seen.add((a, b))
        ours, theirs = here.get(a), there.get(b)
        if ours is None or theirs is None:
            place = _place(ours or theirs)
            found.append(Difference(place, "record", _known(ours, a), _known(theirs, b)))
            return
        for above, below in zip_longest(ours.parents, theirs.parents):
            names = _name(here, above), _name(there, below)
            known = above in here and below in there
            if above is None or below is None or (known and names[0] != names[1]):
                found.append(Difference(_place(ours), "continues", *names))
            else:
                compare(above, below)
        found.extend(
            Difference(_place(ours), part, mine, its) for part, mine, its in _parts(ours, theirs)
        )

    compare(one, other)
    return found


def _name(chain: Chain, key: str | None) -> str:
    """Phase that a key stands for; the start of a plan has no name."""
    if key is None:
        return ABSENT
    record = chain.get(key)
    return key if record is None else record.phase or "the start of the plan"


def _place(record: KeyRecord | None) -> str:
    if record is None:
        return "?"
    return record.plan if record.phase is None else f"{record.plan}.{record.phase}"


def _known(record: KeyRecord | None, key: str) -> str:
    return f"{key}, of which nothing is known" if record is None else key


def _parts(ours: KeyRecord, theirs: KeyRecord) -> Iterator[tuple[str, Any, Any]]:
    """Parts that differ, in words where there are any."""
    for part in dict.fromkeys([*ours.parts, *theirs.parts]):
        mine, its = ours.parts.get(part, ABSENT), theirs.parts.get(part, ABSENT)
        if mine == its:
            continue
        told = [record.told.get(part) for record in (ours, theirs)]
        if isinstance(told[0], Mapping) and isinstance(told[1], Mapping):
            words = list(_rates(*told) if part == "rates" else _files(part, *told))
        else:
            words = list(_leaves(part, mine, its))
        yield from words or [(part, mine, its)]


def _rates(mine: Mapping[str, Any], its: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Where rates come from; if that is alike, steps before the phase moved them."""
    found = list(_leaves("", mine, its))
    causes = [(name, a, b) for name, a, b in found if name not in ("first", "last")]
    yield from causes or [(f"learning rate, {name} step", a, b) for name, a, b in found]


def _files(
    part: str, mine: Mapping[str, str], its: Mapping[str, str]
) -> Iterator[tuple[str, Any, Any]]:
    """Files whose content differs. A file that only moved does not; a changed order does."""
    moved = set(mine.values()) & set(its.values())
    for name in dict.fromkeys([*mine, *its]):
        a, b = mine.get(name, ABSENT), its.get(name, ABSENT)
        if a != b and not {a, b} <= moved | {ABSENT}:
            yield f"{part} {name}", _short(a), _short(b)
    if list(mine.values()) != list(its.values()) and sorted(mine.values()) == sorted(its.values()):
        yield f"{part}, order of files", ", ".join(mine), ", ".join(its)


def _short(digest: str) -> str:
    return digest if digest == ABSENT else f"content {digest[:12]}"


def _leaves(name: str, mine: Any, its: Any) -> Iterator[tuple[str, Any, Any]]:
    """Values that differ, by dotted name."""
    if isinstance(mine, Mapping) and isinstance(its, Mapping):
        for key in dict.fromkeys([*mine, *its]):
            inner = f"{name}.{key}" if name else str(key)
            yield from _leaves(inner, mine.get(key, ABSENT), its.get(key, ABSENT))
    elif mine != its:
        yield name, mine, its
