"""What is said about a set that breaks a rule of the format."""

from pathlib import Path

from curriculum.errors import RunError


class BadSet(RunError):
    """A file that breaks a rule: where, and which rule.

    `bin` counts from 0 within the file, `row` within the bin; None where the rule is about more.
    """

    def __init__(
        self, file: Path, rule: str, bin: int | None = None, row: int | None = None, first: int = 0
    ) -> None:
        """`first`: bins of the set before this file, so that the bin is named in both counts."""
        self.file, self.rule, self.bin, self.row = file, rule, bin, row
        place = "" if bin is None else f": bin {bin}"
        if bin is not None and first:
            place += f" ({first + bin} of the set)"
        if row is not None:
            place += f", row {row}"
        super().__init__(f"{file}{place}: {rule}")
