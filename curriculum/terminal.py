"""Tables and findings as text of a given width."""

import textwrap
from collections.abc import Sequence

from curriculum.finding import Finding


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Columns, right-aligned unless the head starts with '<'; the gaps shrink to fit `width`."""
    titles = [title.removeprefix("<") for title in head]
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(head))]
    fits = width is None or sum(widths) + 2 * (len(widths) - 1) <= width
    gap = " " * (2 if fits else 1)
    lines = [
        gap.join(
            cell.ljust(size) if title.startswith("<") else cell.rjust(size)
            for cell, size, title in zip(row, widths, head, strict=True)
        ).rstrip()
        for row in [titles, *rows]
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def finding_lines(finding: Finding, message: str, width: int) -> list[str]:
    """Severity, code and phase before the message, and the remedy below it."""
    where = f" ({finding.phase})" if finding.phase else ""
    head = f"  {finding.severity:8}{finding.code}{where}: "
    return [
        *_wrapped(head + message, " " * 10, width),
        *_wrapped(" " * 10 + f"remedy: {finding.remedy}", " " * 18, width),
    ]


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
