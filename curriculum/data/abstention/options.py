"""What `data abstain` can be told: `key=value` words as one typed object."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from curriculum.word_options import parsed


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Options:
    """How a set is rebuilt. `share`: of unanswerable records among those written.

    `dominant_share`, `dominant_ratio`: from which share of all records on, and how many times as
    frequent as the next one, a target dominates. `extractive_share`: of records that hold their
    answers in their passages, from which on a missing answer means something.
    """

    share: Annotated[float, Field(ge=0, lt=1)]
    seed: int = 0
    bank: Path | None = None
    synthesize: bool = False
    abstention: str | None = None
    dominant: Literal["auto", "false"] = "auto"
    dominant_share: Annotated[float, Field(gt=0, le=1)] = 0.01
    dominant_ratio: Annotated[float, Field(ge=1)] = 10.0
    absent: Literal["auto", "true", "false"] = "auto"
    extractive_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    on_bad_record: Literal["error", "skip"] = "error"
    overwrite: bool = False
    output: Literal["table", "json"] = "table"
    cache_dir: Path = Path(".curriculum/cache")


def parse_options(words: Sequence[str]) -> Options:
    """The options of `key=value` words, the last one of a key counting. `UserError`."""
    return parsed(words, Options, {"share": "0.10"})
