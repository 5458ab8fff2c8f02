"""What a user may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], otherwise: str = "there is") -> str:
    """`did you mean 'x'?`, or what there is, after the words `otherwise`."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"{otherwise} {', '.join(known)}" if known else "there is none"
