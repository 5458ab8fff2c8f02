"""What became of records that did not simply become examples: counted by reason, with addresses."""

from collections import Counter
from dataclasses import dataclass, field

from curriculum.data.sources import Address
from curriculum.errors import RunError

# Reasons, as reports, manifests and audits count by them. Bad records and records that cannot be
# rendered are counted under their own words.
OVER_LONG = "over-long"
NO_SOURCE = "over-long: no source to shorten"
TOO_LONG_WITHOUT_SOURCE = "over-long: does not fit even without its source"
NO_TRAINED_TOKENS = "no trained tokens"
NO_TOKENS = "retrieval text without tokens"
SOURCE_SHORTENED = "source shortened"
SPLIT_INTO_TURNS = "conversation split into single turns"
SPLIT_INTO_PIECES = "text split into pieces"
DOCUMENT_UNUSED = "retrieval document beyond the group"
TEXT_SHORTENED = "retrieval text shortened"

_LISTED = 20
_ADDRESSES = 3


@dataclass
class Report:
    """What was left out (`drops`) and what was changed (`cuts`), counted by reason.

    `dropped_at` and `cut_at` hold the first addresses of each reason, for messages and audit.
    """

    drops: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    dropped_at: dict[str, list[str]] = field(default_factory=dict)
    cut_at: dict[str, list[str]] = field(default_factory=dict)
    errors: list[tuple[Address, str]] = field(default_factory=list)

    def drop(self, reason: str, address: Address) -> None:
        """Count a record, or a part of one, as left out."""
        self.drops[reason] += 1
        _note(self.dropped_at, reason, address)

    def cut(self, reason: str, address: Address, count: int = 1) -> None:
        """Count what a record was changed by, if it was."""
        if count:
            self.cuts[reason] += count
            _note(self.cut_at, reason, address)

    def raise_errors(self, what: str) -> None:
        """`RunError` that lists the first records that the policy calls errors; `what` they are
        records of, as the message begins."""
        if self.errors:
            listed = [message for _, message in sorted(self.errors)[:_LISTED]]
            rest = len(self.errors) - len(listed)
            more = [f"and {rest} more among the records read so far"] if rest else []
            head = f"{what}: {len(self.errors)} record(s) cannot be used"
            raise RunError("\n".join([head, *listed, *more]))


def _note(places: dict[str, list[str]], reason: str, address: Address) -> None:
    known = places.setdefault(reason, [])
    if len(known) < _ADDRESSES:
        known.append(str(address))
