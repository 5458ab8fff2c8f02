"""`store why`: value by value, what keeps a finished phase from being used for a plan."""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from curriculum.compose import compose
from curriculum.dry import dry_run, generate_demo
from curriculum.errors import RunError, UserError
from curriculum.lineage import finished_phases, lineage
from curriculum.naming import nearest
from curriculum.overrides import parted
from curriculum.plan import keys
from curriculum.plan.differences import Chain, Difference, differences
from curriculum.store.entries import Entry, entries
from curriculum.store.verb import entry_json, find_key, store_directory
from curriculum.terminal import grid

USAGE = "usage: store why [KEY] [+plan=NAME [phase=PHASE] [--config-dir DIR] [KEY=VALUE ...]]"
_WIDEST = 60


@dataclass(frozen=True)
class Subject:
    """The phase that is asked about: of a plan, or itself a stored one."""

    store: Path
    phase: str
    key: str
    chain: Chain
    of_plan: bool


def main(argv: Sequence[str]) -> int:
    """Print the comparison; 0 whether something differs or not."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config_dir, overrides, words = parted("curriculum store why", argv)
    given = {o.partition("=")[0]: o.partition("=")[2] for o in overrides}
    asked = given.get("phase")
    rest = [o for o in overrides if not o.startswith("phase=")]
    if len(words) > 1 or not (words or any(key.lstrip("+") == "plan" for key in given)):
        raise UserError(USAGE)
    if any(key.lstrip("+") == "plan" for key in given):
        subject = _of_plan(rest, config_dir, asked, words)
        against = entries(subject.store)
        if words:
            against = [find_key(against, words[0])]
    else:
        directory = Path(given["store.dir"]) if "store.dir" in given else None
        subject, against = _of_store(store_directory(directory), words[0])
    best = _nearest(subject, against, given_key=bool(words) and subject.of_plan)
    if given.get("output") == "json":
        print(json.dumps(_tree(subject, best), indent=2, allow_nan=False))
    else:
        print(_text(subject, best))
    return 0


def _of_plan(
    overrides: Sequence[str], config_dir: str | None, asked: str | None, words: Sequence[str]
) -> Subject:
    """A phase of a composed plan: the one asked for, that of a given key, or the first to run."""
    config = compose(overrides, config_dir)
    if config.profile.corpus == "demo":
        generate_demo(config)
    ready = dry_run(config).ready
    found = lineage(ready, config)
    if found is None:
        raise RunError(
            f"plan {config.plan.name}: the length of a phase in epochs is known once its data is "
            "prepared; run with dry_run=data first"
        )
    store = Path(ready.store.dir)
    if asked is None and words:
        asked = find_key(entries(store), words[0]).phase
    if asked is None:
        done = finished_phases(ready, found.keys)
        asked = next((name for name in found.keys if name not in done), list(found.keys)[-1])
    if asked not in found.keys:
        raise UserError(f"phase={asked}: no such phase; {nearest(asked, found.keys)}")
    key = found.keys[asked]
    # as a stored record is read: pairs become lists
    chain = keys.from_json(json.loads(json.dumps(keys.to_json(key, found.chain(asked)))))
    return Subject(store, asked, key, chain, True)


def _of_store(directory: Path, key: str) -> tuple[Subject, list[Entry]]:
    found = entries(directory)
    entry = find_key(found, key)
    if entry.record is None:
        raise RunError(f"{entry.directory}: holds no readable record of what its key stands for")
    subject = Subject(directory, entry.phase, entry.key, keys.from_json(entry.record), False)
    return subject, [other for other in found if other.key != entry.key]


def _nearest(
    subject: Subject, found: Sequence[Entry], given_key: bool
) -> tuple[Entry, list[Difference]] | None:
    """The entry of a phase by that name, unless a key was given, that differs in the least."""
    compared = []
    for entry in found:
        if (entry.damage is None and entry.phase == subject.phase) or given_key:
            compared.append((entry, _differences(subject, entry)))
    return min(compared, key=lambda pair: _distance(pair[1]), default=None)


def _distance(found: Sequence[Difference]) -> tuple[int, int]:
    return len({difference.place for difference in found}), len(found)


def _differences(subject: Subject, entry: Entry) -> list[Difference]:
    record = entry.record
    if entry.damage is not None:
        return [Difference(entry.phase, "stored phase", "whole", f"damaged: {entry.damage}")]
    if record is None:
        return [Difference(entry.phase, "record", "known", "absent or not readable")]
    if record["schema"] != keys.SCHEMA:
        return [Difference(entry.phase, "schema of keys", keys.SCHEMA, record["schema"])]
    return differences(subject.chain, subject.key, keys.from_json(record), entry.key)


def _tree(subject: Subject, best: tuple[Entry, list[Difference]] | None) -> dict[str, Any]:
    found = [] if best is None else best[1]
    return {
        "phase": subject.phase,
        "key": subject.key,
        "finished": _is_finished(subject, best),
        "nearest": None if best is None else entry_json(best[0]),
        "first_cause": found[0].place if found else None,
        "differences": [asdict(difference) for difference in found],
    }


def _is_finished(subject: Subject, best: tuple[Entry, list[Difference]] | None) -> bool:
    return not subject.of_plan or (best is not None and best[0].key == subject.key)


def _text(subject: Subject, best: tuple[Entry, list[Difference]] | None) -> str:
    head = f"phase {subject.phase}, key {subject.key}"
    if best is None:
        other = "other " if not subject.of_plan else ""
        return f"{head}: no {other}finished phase of that name in {subject.store}"
    entry, found = best
    if entry.key == subject.key:
        return f"{head}: finished, by {entry.run}; a run uses it"
    state = "not finished" if subject.of_plan else "finished"
    near = f"{head}: {state}\nnearest finished one: key {entry.key}, by {entry.run}"
    mine = "this plan" if subject.of_plan else subject.key[:8]
    table = [[d.place, d.part, _shown(d.here), _shown(d.there)] for d in found]
    head_row = ("<where", "<what", f"<{mine}", f"<{entry.key[:8]}")
    return f"{near}\n\n{grid(head_row, table, None)}\n\n{_cause(found)}"


def _cause(found: Sequence[Difference]) -> str:
    places = list(dict.fromkeys(difference.place for difference in found))
    if len(places) == 1:
        return f"the cause: {places[0]}"
    return f"the first cause: {places[0]}; then {', '.join(places[1:])}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
