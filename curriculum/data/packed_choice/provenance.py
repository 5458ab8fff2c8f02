"""The tokenizer that a set was packed with, noted in its manifest, so that its ids never pass for
the words of another one."""

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.data.packed_choice.manifest import MANIFEST_FILE, EvalManifest, Manifest
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.data.tokenizer import tokenizer_digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def tokenizer_note(tokenizer: "PreTrainedTokenizerFast", directory: str | None) -> dict[str, Any]:
    """`source.tokenizer` of a manifest: where the tokenizer lay, and digests of all that decides
    ids (`sha256`) and of what each id means (`vocabulary`)."""
    return {
        "directory": None if directory is None else os.path.abspath(directory),
        "sha256": tokenizer_digest(tokenizer),
        "vocabulary": _vocabulary_digest(tokenizer),
    }


def difference(source: Any, tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """Why the ids of a set mean other words to a tokenizer; None if they mean the same, or if the
    set's `source` has no note of ours.

    A tokenizer with another end of text or other rules of cutting passes if it has the same tokens
    under the same ids: what is packed is not cut again.
    """
    noted = source.get("tokenizer") if isinstance(source, dict) else None
    if not isinstance(noted, dict) or not {"directory", "sha256"} <= noted.keys():
        return None
    by_ids = "vocabulary" in noted
    name = "vocabulary" if by_ids else "sha256"
    found = _vocabulary_digest(tokenizer) if by_ids else tokenizer_digest(tokenizer)
    if noted[name] == found:
        return None
    place = "" if noted["directory"] is None else f", that of {noted['directory']}"
    return (
        f"source.tokenizer.{name}={str(noted[name])[:12]}: packed with another tokenizer{place}, "
        f"than the one here ({found[:12]}), to which its ids mean other words"
    )


def require_same_tokenizer(
    directory: Path, manifest: Manifest | EvalManifest, tokenizer: "PreTrainedTokenizerFast"
) -> None:
    """`BadSet` for a set of other words."""
    why = difference(manifest.source, tokenizer)
    if why is not None:
        remedy = "pack its records again with this tokenizer, or give that one as model.tokenizer"
        raise BadSet(directory / MANIFEST_FILE, f"{why}; remedy: {remedy}")


def _vocabulary_digest(tokenizer: "PreTrainedTokenizerFast") -> str:
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda token: (token[1], token[0]))
    return hashlib.sha256(json.dumps(tokens, ensure_ascii=True).encode()).hexdigest()
