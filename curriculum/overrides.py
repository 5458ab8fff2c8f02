"""Hydra's override grammar, as forgiving as a command line should be.

`a.b=c` becomes `++a.b=c`, so that a key which a card leaves out can be set, and one that does not
exist reaches the schema, which knows the nearest valid name. `plan=NAME` becomes `+plan=NAME`.
Groups, `hydra.*` and anything with a prefix of its own stay as they are.
"""

import argparse
import hashlib
import re
from collections.abc import Collection, Sequence


def rewritten(overrides: Sequence[str], groups: Collection[str]) -> list[str]:
    """The overrides that Hydra gets. `groups`: names of folders with options."""
    return [_rewritten(override, groups) for override in overrides]


def is_override(argument: str) -> bool:
    """True for `key=value`, `+key=value` and `~key`, False for flags and their values."""
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))


def parted(program: str, arguments: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
    """What `--config-dir` gives, the overrides, and all other words, in their order."""
    options = argparse.ArgumentParser(program, add_help=False, allow_abbrev=False)
    options.add_argument("--config-dir", "-cd")
    known, rest = options.parse_known_args(list(arguments))
    overrides = [word for word in rest if is_override(word)]
    return known.config_dir, overrides, [word for word in rest if not is_override(word)]


def job_suffix(overrides: Sequence[str]) -> str:
    """A folder name made of a multirun job's overrides, in `[A-Za-z0-9_.-]`; may be empty.

    Plan and profile are in the path already, and what a run prints does not change where it lies.
    A hash is added where cleaning the text, or cutting it, could make two jobs meet.
    """
    parts = [o.lstrip("+") for o in overrides if _key(o) not in _NOT_IN_PATH]
    exact = ",".join(sorted(part.replace("=", "-", 1) for part in parts))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", exact).strip("-.")
    if name == exact and len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"


_LONGEST = 120
_NOT_IN_PATH = ("plan", "profile", "dry_run", "output", "run.dir", "run.fresh")


def _rewritten(override: str, groups: Collection[str]) -> str:
    key = _key(override)
    if override.startswith(("+", "~")) or "=" not in override or key.startswith("hydra."):
        return override
    if key == "plan":
        return f"+{override}"
    if key in groups or "/" in key or "@" in key:
        return override
    return f"++{override}"


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
