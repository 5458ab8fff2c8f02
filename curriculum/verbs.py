"""Words of the command line and the functions behind them, imported only when they are called."""

import importlib
from collections.abc import Callable, Mapping, Sequence

from curriculum.errors import UserError
from curriculum.naming import nearest

Table = Mapping[str, tuple[str, str]]
"""Word -> (`module:function`, what it does)."""


def call(table: Table, words: Sequence[str], kind: str) -> int:
    """Call the function of the first word with the others; its exit code. Raises `UserError`."""
    name, rest = words[0], list(words[1:])
    if name not in table:
        raise UserError(f"{name}: no such {kind}; {nearest(name, table, f'{kind}s:')}")
    module, function = table[name][0].split(":")
    run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return run(rest)


def listed(table: Table) -> str:
    """One line a word."""
    width = max(10, *map(len, table))
    return "\n".join(f"  {name:{width}} {about}" for name, (_, about) in table.items())
