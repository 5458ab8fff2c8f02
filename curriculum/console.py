"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere."""

import logging
import sys
import time

from tqdm import tqdm

from curriculum.tracking.metrics import MetricsRow

_SECONDS_BETWEEN_LINES = 20.0

log = logging.getLogger(__name__)


class Progress:
    """Progress of one phase. Only the rank that shows it makes one."""

    def __init__(self, phase: str, start: int, steps: int, shown: bool) -> None:
        self._steps, self._phase, self._shown = steps, phase, shown
        on_terminal = shown and sys.stderr.isatty()
        self._bar = (
            tqdm(total=steps, initial=start, desc=phase, unit="step", leave=True)
            if on_terminal
            else None
        )
        self._last = time.monotonic()

    def step(self, row: MetricsRow) -> None:
        loss = "not finite" if row.loss is None else f"{row.loss:.4f}"
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss}", refresh=False)
            self._bar.update()
        elif self._shown and (
            row.phase_step == self._steps or time.monotonic() - self._last > _SECONDS_BETWEEN_LINES
        ):
            self._last = time.monotonic()
            log.info("%s: step %d of %d, loss %s", self._phase, row.phase_step, self._steps, loss)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
