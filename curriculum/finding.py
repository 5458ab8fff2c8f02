"""What a check of a plan, or of its data, says."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """`code` is stable; the message carries the figures and the remedy says what to do.

    `examples`: addresses of records that show it, for findings about data.
    """

    code: str
    severity: Literal["error", "warning", "ignored"]
    phase: str | None
    message: str
    remedy: str
    examples: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All fields; `examples` only where there are any."""
        values = asdict(self)
        examples = list(values.pop("examples"))
        return values | ({"examples": examples} if examples else {})


def ranked(findings: Iterable[Finding], ignored: Collection[str]) -> list[Finding]:
    """Errors first, then warnings, then those whose code is `ignored`: visible, but harmless."""
    found = [replace(f, severity="ignored") if f.code in ignored else f for f in findings]
    return sorted(found, key=lambda f: ("error", "warning", "ignored").index(f.severity))
