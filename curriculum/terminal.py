"""Tables and findings as text of a given width, sizes and durations."""

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


def finding_lines(findings: Sequence[Finding], width: int) -> list[str]:
    """A block a finding: severity, code and phase before the message; examples and remedy below."""
    if not findings:
        return ["findings: none"]
    lines = ["findings:"]
    for finding in findings:
        where = f" ({finding.phase})" if finding.phase else ""
        head = f"  {finding.severity:8}{finding.code}{where}: "
        message = finding.message.removeprefix(f"{finding.phase}: ")
        lines += _wrapped(head + message, " " * 10, width)
        lines += _wrapped(" " * 10 + f"remedy: {finding.remedy}", " " * 18, width)
        lines += [f"{' ' * 10}e.g.    {place}" for place in finding.examples]
    return lines


def size_text(count: int) -> str:
    """Bytes in the largest decimal unit that leaves at least one: `3.6 GB`."""
    value, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.2f} {units[0]}"


def duration_text(seconds: float | None) -> str:
    """`48 s`, `12.5 min`, `7.2 h`, `3.1 d`: in the largest unit that leaves at least one."""
    if seconds is None:
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
