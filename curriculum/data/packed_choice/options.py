"""What `data pack-choice` and `data unpack-choice` can be told."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from curriculum.data.packed_choice.packer import OnBadRecord, OnOverLong, Split
from curriculum.data.packed_choice.tokens import SLOT
from curriculum.errors import UserError
from curriculum.word_options import parsed

_strict = ConfigDict(extra="forbid", allow_inf_nan=False)


def _listed(value: Any) -> Any:
    """A JSON list as a list; anything else is left for the validator to judge."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


Texts = Annotated[list[str], BeforeValidator(_listed)]


@dataclass(config=_strict, kw_only=True)
class PackOptions:
    """How records are packed; `packer.pack_records` says what each option means."""

    seq_len: Annotated[int, Field(ge=2)]
    split: Split
    tokenizer: str = Field(alias="model.tokenizer")
    chat_template: str | None = Field(default=None, alias="model.chat_template")
    spellings: Texts = Field(default_factory=lambda: [SLOT])
    answer_prefix: str = ""
    on_over_long: OnOverLong = "error"
    on_bad_record: OnBadRecord = "error"
    strict: bool = False
    mix_components: Texts | None = None
    name: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    overwrite: bool = False
    output: Literal["table", "json"] = "table"
    cache_dir: Path = Path(".curriculum/cache")


@dataclass(config=_strict, kw_only=True)
class UnpackOptions:
    """How bins are shown. Without a tokenizer, that of the packer is used if it is still there."""

    tokenizer: str | None = Field(default=None, alias="model.tokenizer")


def pack_options(words: Sequence[str]) -> PackOptions:
    """`UserError` for what `parsed` calls one, and for options that mean nothing together."""
    options = parsed(
        words, PackOptions, {"seq_len": "512", "split": "train", "model.tokenizer": "DIR"}
    )
    components = options.mix_components
    if options.name is not None and options.split != "eval":
        raise UserError(f"name={options.name}: only an evaluation set has a name (split=eval)")
    if components is not None and options.split == "eval":
        raise UserError(f"mix_components={components}: an evaluation set has no mixture")
    if components is not None and (not all(components) or len({*components}) < len(components)):
        raise UserError(f"mix_components={components}: names must differ, and none be empty")
    return options


def unpack_options(words: Sequence[str]) -> UnpackOptions:
    return parsed(words, UnpackOptions, {})
