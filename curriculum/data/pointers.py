"""Where it is noted which prepared set belongs to files as they are, so that no content is read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from curriculum.config import Config
from curriculum.data.sources import expand, stats
from curriculum.data.tokenizer import tokenizer_files


def hashed(values: Any) -> str:
    """Thirty-two hex digits of the SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def pointer_of(
    config: Config, kind: str, inputs: Mapping[str, Any], files: Sequence[Path]
) -> Path | None:
    """The note for a set of a kind, by its inputs and the stats of all files involved.

    None without a tokenizer.
    """
    tokenizer = tokenizer_files(config.model)
    if not tokenizer:
        return None
    involved = {
        "inputs": inputs,
        "chat_template": config.model.chat_template,
        "sources": stats(files),
        "tokenizer": stats(tokenizer),
    }
    return Path(config.cache.dir) / kind / "pointers" / f"{hashed(involved)}.json"


def noted(
    config: Config, kind: str, inputs: Mapping[str, Any], patterns: Sequence[str]
) -> Path | None:
    """The directory that is noted for a set, by stats alone; its name is the set's key.

    None if nothing is noted, a file changed since, or a pattern matches none.
    """
    files, missing = expand(patterns)
    pointer = None if missing or not files else pointer_of(config, kind, inputs, files)
    if pointer is None:
        return None
    try:
        return pointer.parents[1] / str(json.loads(pointer.read_text())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
