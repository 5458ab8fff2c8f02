"""What `data abstain` can be told: `key=value` words as one typed object."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from curriculum.errors import UserError
from curriculum.naming import nearest


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
    """The options of `key=value` words, the last one of a key counting.

    `UserError` with one line for every unknown key and every wrong value.
    """
    given: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        given[key] = value
    required = [field.name for field in fields(Options) if field.default is MISSING]
    if missing := [name for name in required if name not in given]:
        raise UserError(f"{missing[0]}: required, but not given; for example {missing[0]}=0.10")
    try:
        return TypeAdapter(Options).validate_python(given)
    except ValidationError as error:
        lines = [_complaint(detail) for detail in error.errors(include_url=False)]
        raise UserError("\n".join(dict.fromkeys(lines))) from None


def _complaint(detail: Mapping[str, Any]) -> str:
    name = str(detail["loc"][0])
    value = f"{name}={detail['input']}"
    if detail["type"] != "unexpected_keyword_argument":
        return f"{value}: {detail['msg'][0].lower()}{detail['msg'][1:]}"
    known = [field.name for field in fields(Options)]
    return f"{value}: unknown key; {nearest(name, known, 'valid keys:')}"
