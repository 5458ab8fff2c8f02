"""The verb `store`: what is finished, why something is not, and what may go.

store list [store.dir=DIR] [output=json]
store why [KEY] [+plan=NAME [phase=PHASE] [--config-dir DIR] [KEY=VALUE ...]]
store gc [older_than=30d] [keep=N] [unreachable=true] [dry_run=false]

`why` compares a phase of a plan with the finished phase nearest to it: by default the first phase
that the plan would have to run. A stored KEY alone is compared with the nearest other one; its
first letters are enough. `gc` shows what would go; with dry_run=false it goes. Without a rule it is
what cannot be reached by any run directory; several rules must all agree.
"""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from curriculum.errors import UserError
from curriculum.store.entries import Entry, entries, sizes
from curriculum.store.gc import Rules, Verdict, collect
from curriculum.terminal import grid, size_text
from curriculum.verbs import call, listed
from curriculum.word_options import parsed, parted

COMMANDS = {
    "list": ("curriculum.store.verb:show", "finished phases: size, age, run"),
    "why": ("curriculum.store.why:main", "what differs from the nearest finished phase"),
    "gc": ("curriculum.store.verb:gc", "delete finished phases by age, number or reachability"),
}
USAGE = f"python -m curriculum store COMMAND ...\n\n{listed(COMMANDS)}"
UNITS = {"m": 60, "h": 3600, "d": 86400}


def _seconds(age: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", age)
    if match is None:
        raise ValueError("a number with m, h or d, such as 30d")
    return float(match[1]) * UNITS[match[2]]


@dataclass(config=ConfigDict(extra="forbid"))
class ListOptions:
    store_dir: Path | None = Field(default=None, alias="store.dir")
    output: Literal["table", "json"] = "table"


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False))
class GcOptions:
    older_than: Annotated[float | None, BeforeValidator(_seconds)] = None
    keep: Annotated[int, Field(ge=0)] | None = None
    unreachable: bool | None = None
    dry_run: bool = True
    store_dir: Path | None = Field(default=None, alias="store.dir")
    output: Literal["table", "json"] = "table"

    @property
    def rules(self) -> Rules:
        """As given; without any, what cannot be reached."""
        none = self.older_than is None and self.keep is None
        unreachable = none if self.unreachable is None else self.unreachable
        return Rules(self.older_than, self.keep, unreachable)


def main(argv: Sequence[str]) -> int:
    """Run one command; its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if argv else sys.stderr)
        return 0 if argv else UserError.exit_code
    return call(COMMANDS, argv, "store command")


def show(argv: Sequence[str]) -> int:
    """List the store."""
    options = _options("list", argv, ListOptions)
    directory = store_directory(options.store_dir)
    found = entries(directory)
    whole = sizes([entry.directory for entry in found]).whole
    own = {entry.key: sizes([entry.directory]) for entry in found}
    if options.output == "json":
        rows = [
            {**entry_json(e), "bytes": own[e.key].whole, "freed_bytes": own[e.key].freed}
            for e in found
        ]
        tree = {"store": str(directory), "phases": rows, "bytes": whole}
        print(json.dumps(tree, indent=2, allow_nan=False))
        return 0
    if not found:
        print(f"{directory}: no finished phases")
        return 0
    table = [
        [
            entry.key,
            entry.plan or "?",
            entry.phase,
            size_text(own[entry.key].whole),
            size_text(own[entry.key].freed),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            "damaged" if entry.damage else _shortened(entry.run),
        ]
        for entry in found
    ]
    head = ("<key", "<plan", "<phase", "size", "freed", "<last used", "<run")
    print(f"{grid(head, table, None)}\n\n{_count(found)}, {size_text(whole)} in {directory}")
    print("freed: by deleting this one alone; what a run's own checkpoints share stays")
    return 0


def gc(argv: Sequence[str]) -> int:
    """Judge the finished phases of the store; delete what goes if `dry_run=false`."""
    options = _options("gc", argv, GcOptions)
    directory, delete = store_directory(options.store_dir), not options.dry_run
    if not directory.is_dir():
        raise UserError(f"store.dir={directory}: no such directory")
    found = collect(directory, options.rules, delete)
    if options.output == "json":
        tree = {
            "store": str(directory),
            "dry_run": not delete,
            "deleted": [_verdict_json(v) for v in found.verdicts if v.goes],
            "kept": [_verdict_json(v) for v in found.verdicts if not v.goes],
            "leftovers": [path.name for path in found.leftovers],
            "freed_bytes": found.sizes.freed,
        }
        print(json.dumps(tree, indent=2, allow_nan=False))
        return 0
    table = [
        [v.entry.key, v.entry.plan or "?", v.entry.phase, "delete" if v.goes else "keep", v.why]
        for v in found.verdicts
    ]
    if table:
        print(grid(("<key", "<plan", "<phase", "<verdict", "<why"), table, None), end="\n\n")
    done = "deleted" if delete else "would be deleted (dry_run=false deletes)"
    extra = f" and {len(found.leftovers)} leftovers of ended processes" if found.leftovers else ""
    print(f"{_count(found.doomed)}{extra} {done}; {size_text(found.sizes.freed)} freed")
    return 0


def store_directory(given: Path | None) -> Path:
    """`store.dir` as given, or as `conf/` says."""
    if given is None:
        import yaml

        from curriculum.library import shipped

        values = yaml.safe_load((shipped()[0] / "config.yaml").read_text(encoding="utf-8"))
        given = Path(values["store"]["dir"])
    return given.expanduser().absolute()


def entry_json(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    return {
        "key": entry.key,
        "plan": entry.plan,
        "phase": entry.phase,
        "step": entry.step,
        "run": entry.run,
        "last_used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used)),
        "damage": entry.damage,
    }


def find_key(found: Sequence[Entry], key: str) -> Entry:
    """The entry whose key begins so. Raises `UserError` if there is none, or several."""
    fits = [entry for entry in found if entry.key.startswith(key)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UserError(f"{key}: begins {len(fits)} keys: {', '.join(e.key for e in fits)}")
    known = ", ".join(f"{e.key} ({e.phase})" for e in found[:5]) or "none"
    raise UserError(
        f"{key}: no such key in the store; the last used: {known}; for a phase of a plan: "
        "store why +plan=NAME phase=PHASE"
    )


def _options(command: str, argv: Sequence[str], options: type[Any]) -> Any:
    words, given = parted(argv)
    if words:
        raise UserError(f"{words[0]}: store {command} takes KEY=VALUE only; see store --help")
    return parsed(given, options, {})


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {**entry_json(verdict.entry), "why": verdict.why}


def _count(found: Sequence[Entry]) -> str:
    return "1 finished phase" if len(found) == 1 else f"{len(found)} finished phases"


def _shortened(run: str) -> str:
    here = str(Path.cwd()) + "/"
    return run.removeprefix(here)
