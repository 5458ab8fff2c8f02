"""A run directory whose world has changed: what is different is named, what was there is kept.

`run.json` says what the directory was last trained with: what every phase's key stands for, the
configuration, the software, the user's own code. The next start compares. Whatever a change makes
invalid moves to `replaced_<k>/` within the directory; what is still valid stays and is used.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from curriculum.checked import CheckedPlan
from curriculum.config import Config
from curriculum.errors import UserError
from curriculum.faults.aside import set_aside, sweep
from curriculum.faults.failures import software
from curriculum.files import write_json
from curriculum.plan.graph import order

RECORD = "run.json"
SCHEMA = 1
_SHOWN = 8
# what says how a run is started, not what it is
_NO_CHANGE = ("run.", "dry_run", "output")


@dataclass(frozen=True)
class Changes:
    """`weights`: lines on what changes weights, `phases` whose keys they changed. `other`: lines on
    what leaves the keys as they were. `kept_steps`: of the phases before the first changed one."""

    weights: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    kept_steps: int = 0


def describe(plan: CheckedPlan, ranks: int) -> dict[str, Any]:
    """The record of a start."""
    assert plan.lineage is not None
    found = {
        "schema": SCHEMA,
        "fresh": plan.composed.run.fresh,
        "phases": {
            name: {"key": r.key, "parents": r.parents, "parts": r.parts, "told": r.told}
            for name, r in plan.lineage.phases.items()
        },
        "config": dict(_flat(asdict(plan.composed))),
        "software": software(),
        "code": dict(_own_code(plan.composed)),
        "ranks": ranks,
    }
    return _plain(found)


def last(directory: Path) -> dict[str, Any] | None:
    """What the directory was last trained with; None if nothing (readable) says so."""
    try:
        found = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def goes_on(directory: Path, plan: CheckedPlan) -> bool:
    """True if the directory holds an interrupted `run.fresh=true` of this very plan, which the same
    command goes on with."""
    before = last(directory)
    if before is None or not before["fresh"] or (directory / "finished.json").exists():
        return False
    return {name: phase["key"] for name, phase in before["phases"].items()} == plan.keys


def compare(plan: CheckedPlan, before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """What is different between two records, the later one that of `plan`."""
    old, new = before["phases"], now["phases"]
    changed = [name for name in new if name not in old or old[name]["key"] != new[name]["key"]]
    lines: list[str] = []
    for name in changed:
        if name not in old:
            lines.append(f"plan.phases.{name} is new")
        else:
            lines += _phase_lines(name, old[name], new[name])
    gone = [name for name in old if name not in new]
    lines += [f"plan.phases.{name} is gone" for name in gone]
    if changed and _origin(old) != _origin(new):
        lines.insert(0, "the weights it starts from (plan.init_from)")
    if changed and not lines:
        lines = ["the order of the phases, or what they continue"]
    told = " ".join(lines)
    other = [
        f"{key} {_short(was)} -> {_short(become)}"
        for key, was, become in _pairs(before["config"], now["config"])
        if not key.startswith(_NO_CHANGE) and not _covered(key, told, [*changed, *gone])
    ]
    other += [f"{n} {_short(a)} -> {_short(b)}" for n, a, b in _pairs_of(before, now, "software")]
    other += [f"the code of {name}" for name, _, _ in _pairs_of(before, now, "code")]
    if before["ranks"] != now["ranks"]:
        other.append(f"ranks {before['ranks']} -> {now['ranks']} (the same steps, to rounding)")
    names = order(plan.ready.plan)
    kept = names[: min((names.index(name) for name in changed), default=len(names))]
    steps = sum(plan.ready.plan.phases[name].steps or 0 for name in kept)
    return Changes(list(dict.fromkeys(lines)), [*changed, *gone], other, steps)


def settle(plan: CheckedPlan, ranks: int) -> list[str]:
    """Compare, put aside what is no longer valid, and record this start. Lines to be shown.

    Only one process of a run calls this, before the others look at the directory.
    """
    directory = plan.directory
    sweep(directory)
    before, now = last(directory), describe(plan, ranks)
    lines: list[str] = []
    if before is not None:
        found = compare(plan, before, now)
        if found.phases:
            lines.append(
                f"{directory}: changed since it was trained here: {_listed(found.weights)}"
            )
            aside = set_aside(directory, plan.keys, found.kept_steps, found.phases)
            if aside is not None:
                lines.append(f"what was trained here and no longer counts is kept in {aside}")
        if found.other:
            lines.append(f"changed, and every checkpoint still counts: {_listed(found.other)}")
    write_json(directory / RECORD, now)
    return lines


def _phase_lines(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What of a phase's own differs; what it continues may differ too."""
    for part, was, become in _pairs(old["parts"], new["parts"]):
        was_told, told = old["told"].get(part), new["told"].get(part)
        if isinstance(was_told, Mapping) and isinstance(told, Mapping) and was_told != told:
            pairs = list(_pairs(dict(_flat(was_told)), dict(_flat(told))))
            if part in ("data", "tokenizer"):
                # a file that only lies elsewhere now has not changed
                same = set(was_told.values()) & set(told.values())
                files = [Path(file).name for file, a, b in pairs if not {a, b} & same]
                shown = ", ".join(list(dict.fromkeys(files))[:3]) or "their order"
                yield f"{part} of plan.phases.{name} ({shown})"
                continue
            for key, a, b in pairs:
                if key in ("first", "last"):
                    continue
                place = key if "." in key else f"plan.phases.{name}.{key}"
                yield f"{place} {_short(a)} -> {_short(b)}"
            if not [key for key, _, _ in pairs if key not in ("first", "last")]:
                ends = ", ".join(f"{key} {_short(a)} -> {_short(b)}" for key, a, b in pairs)
                yield f"learning rate of plan.phases.{name} ({ends})"
        elif part in ("data", "tokenizer"):
            yield f"{part} of plan.phases.{name} (content)"
        elif part.startswith("phase."):
            for key, a, b in _pairs(dict(_flat({part: was})), dict(_flat({part: become}))):
                dotted = key.removeprefix("phase.")
                yield f"plan.phases.{name}.{dotted} {_short(a)} -> {_short(b)}"
        else:
            yield f"{part} {_short(was)} -> {_short(become)}"


def _covered(key: str, told: str, phases: list[str]) -> bool:
    """True if a changed key of the configuration was told already, or is of a phase that was."""
    parts = key.split(".")
    return key in told or (parts[:2] == ["plan", "phases"] and parts[2] in phases)


def _origin(phases: Mapping[str, Any]) -> list[str]:
    return next(iter(phases.values()))["parents"] if phases else []


def _pairs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Keys whose values differ, with both values; a key that one lacks has null there."""
    for key in [*new, *(key for key in old if key not in new)]:
        if old.get(key) != new.get(key):
            yield key, old.get(key), new.get(key)


def _pairs_of(
    before: Mapping[str, Any], now: Mapping[str, Any], name: str
) -> Iterator[tuple[str, object, object]]:
    return _pairs(before.get(name) or {}, now[name])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; lists are values."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(values: Any) -> Any:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(values, default=str))


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(lines: list[str]) -> str:
    more = len(lines) - _SHOWN
    return "; ".join(lines[:_SHOWN]) + (f"; and {more} more (see {RECORD})" if more > 0 else "")


def _own_code(config: Config) -> Iterator[tuple[str, str]]:
    """Digests of the files of the user's own classes and functions that a plan names."""
    for phase in config.plan.phases.values():
        named = [phase.objective.get("_target_")] if not isinstance(phase.objective, str) else []
        named += [getattr(x, "import_path", None) for x in (phase.loss, *_evals(config, phase))]
        for path in filter(None, named):
            if (file := _source(str(path))) is not None:
                yield str(path), hashlib.sha256(file.read_bytes()).hexdigest()[:20]


def _evals(config: Config, phase: Any) -> list[Any]:
    return [getattr(phase, "choice_eval", None), getattr(config, "choice_eval", None)]


def _source(import_path: str) -> Path | None:
    """The file of the module of `package.module.Name` or `package.module:name`."""
    module = import_path.partition(":")[0] if ":" in import_path else import_path.rpartition(".")[0]
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, UserError):
        return None
    origin = Path(found.origin) if found is not None and found.origin else None
    return origin if origin is not None and origin.is_file() else None
