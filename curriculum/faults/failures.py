"""Crash loops: a run that fails again and again in the same place is not started once more.

`failures.jsonl` in the run directory has one line for each start that failed while it trained. The
next start is refused once the last few failed with the same error, at the same step, under the same
configuration and software. A killed process leaves no line: what an outer hand did says nothing
about the run. Errors of configuration and data end a start before it trains, and are not counted.
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import orjson

from curriculum import __version__
from curriculum.config import Config
from curriculum.errors import RunError

NAME = "failures.jsonl"
_TEXT = 2000
_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True)
class Failure:
    """One failed start. `attempt` is equal on all ranks of a start, `setting` a digest of what a
    user may change to mend it. `step` counts over the plan: the last one that was taken."""

    attempt: str
    setting: str
    kind: str
    error: str
    phase: str | None
    step: int

    @property
    def signature(self) -> tuple[str, ...]:
        """Equal for failures that are the same one: numbers in a message may differ, such as
        addresses and free memory."""
        plain = re.sub(r"0x[0-9a-f]+|\d+", "#", self.error.splitlines()[0] if self.error else "")
        return self.setting, self.kind, plain, str(self.phase), str(self.step)


def setting(config: Config) -> str:
    """Digest of the configuration, the number of ranks and the software."""
    values = {name: value for name, value in asdict(config).items() if name != "run"}
    ranks = os.environ.get("WORLD_SIZE", "1")
    text = json.dumps([values, ranks, software()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def software() -> dict[str, str]:
    """Versions of what computes."""
    found = {"curriculum": __version__, "python": platform.python_version()}
    return found | {name: version(name) for name in _LIBRARIES}


def record(
    directory: Path,
    config: Config,
    error: BaseException,
    attempt: str,
    phase: str | None,
    step: int,
) -> None:
    """Write a failure down. Any rank may call this; each line is appended by one write."""
    text = str(error).strip()[:_TEXT]
    failure = Failure(attempt, setting(config), type(error).__name__, text, phase, step)
    line = orjson.dumps(asdict(failure), option=orjson.OPT_APPEND_NEWLINE)
    with (directory / NAME).open("ab", buffering=0) as file:
        file.write(line)


def refuse_a_loop(directory: Path, config: Config) -> None:
    """Raises `RunError` if the last `run.max_same_failures` starts failed alike, with that error
    and what to do. `config` is as composed."""
    path, most = directory / NAME, config.run.max_same_failures
    by_attempt: dict[str, Failure] = {}
    for failure in read(path):
        by_attempt.setdefault(failure.attempt, failure)  # the first rank to fail knows the cause
    last = list(by_attempt.values())[-most:] if most else []
    if not most or len(last) < most or last[-1].setting != setting(config):
        return
    if len({failure.signature for failure in last}) == 1:
        failure = last[-1]
        error = failure.error.splitlines()[0] if failure.error else "no message"
        raise RunError(
            f"{directory}: not started: the last {most} starts failed alike, after step "
            f"{failure.step} (phase {failure.phase}): {failure.kind}: {error}; mend the cause (a "
            f"change of configuration or software counts as a new try), or delete {path} to try "
            "again as it is (run.max_same_failures)"
        )


def read(path: Path) -> Sequence[Failure]:
    """All whole lines, oldest first."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Failure(**orjson.loads(line)))
        except (ValueError, TypeError):  # a torn line, or one of another version
            continue
    return found
