"""Words of the command line and the functions behind them, imported only when they are called."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence

from curriculum.errors import UserError

Table = Mapping[str, tuple[str, str]]
"""Word -> (`module:function`, what it does)."""


def call(table: Table, words: Sequence[str], kind: str) -> int:
    """Call the function of the first word with the others; its exit code. Raises `UserError`."""
    name, rest = words[0], list(words[1:])
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"{kind}s: {', '.join(table)}"
        raise UserError(f"{name}: no such {kind}; {hint}")
    module, function = table[name][0].split(":")
    run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return run(rest)


def listed(table: Table) -> str:
    """One line a word."""
    return "\n".join(f"  {name:10} {about}" for name, (_, about) in table.items())
