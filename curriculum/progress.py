"""What a person sees while work goes on: a bar on a terminal, plain lines elsewhere."""

import logging
import sys
import time

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 20.0

log = logging.getLogger(__name__)


class Progress:
    """Progress of one piece of work, counted in `unit`. `shown`: False where another process
    shows it."""

    def __init__(
        self, what: str, unit: str, total: int, done: int = 0, *, shown: bool = True
    ) -> None:
        self._what, self._unit, self._total, self._done = what, unit, total, done
        self._shown, self._last = shown, time.monotonic()
        self._bar = (
            tqdm(total=total, initial=done, desc=what, unit=unit)
            if shown and sys.stderr.isatty()
            else None
        )

    def advance(self, count: int, note: str = "", total: int | None = None) -> None:
        """`count` more are done, of `total` in all if that has changed."""
        self._done += count
        self._total = self._total if total is None else total
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif self._shown and (
            self._done == self._total or time.monotonic() - self._last > _SECONDS_BETWEEN_LINES
        ):
            self._last = time.monotonic()
            after = f", {note}" if note else ""
            log.info("%s: %s %d of %d%s", self._what, self._unit, self._done, self._total, after)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
