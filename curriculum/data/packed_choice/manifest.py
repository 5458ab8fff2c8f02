"""`manifest.json`: what a set says of itself.

Keys that this program does not know are left alone, so that others may add their own.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from curriculum.data.packed_choice.refusal import BadSet
from curriculum.errors import RunError

SCHEMA = "simile-packed-choice/v2"
EVAL_SCHEMA = "simile-packed-choice-eval/v1"
MANIFEST_FILE = "manifest.json"
_FAMILY = "simile-packed-choice"
_SPLITS = ("train", "val")


@dataclass(frozen=True)
class File:
    """An Arrow IPC file of the set, and how many bins it holds."""

    name: str
    num_bins: int


@dataclass(frozen=True)
class Manifest:
    """A training or validation set. `num_examples`: its rows, `max_choices`: no row has more.

    `mix_components`: names of the columns of `mix_weights`. `source`: how it was made, if said.
    """

    split: str
    seq_len: int
    num_bins: int
    num_examples: int
    num_tokens: int
    max_choices: int
    mix_components: tuple[str, ...]
    files: tuple[File, ...]
    source: Any = None
    schema_version: str = SCHEMA


@dataclass(frozen=True)
class EvalManifest:
    """An evaluation set of `num_rows` rows, numbered from 0."""

    name: str
    seq_len: int
    num_bins: int
    num_rows: int
    max_choices: int
    files: tuple[File, ...]
    source: Any = None
    schema_version: str = EVAL_SCHEMA


def is_packed(directory: Path | str) -> bool:
    """True if a directory's manifest names this format, in whichever version."""
    try:
        values = json.loads((Path(directory) / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and str(values.get("schema_version")).startswith(_FAMILY)


def read_manifest(directory: Path | str) -> Manifest | EvalManifest:
    """The manifest of a set, its own rules checked; `BadSet` names what breaks one. No bin is
    read."""
    path = Path(directory) / MANIFEST_FILE
    reader = _Reader(path, _values(path))
    schema = reader.values.get("schema_version")
    if schema == SCHEMA:
        return _training(reader)
    if schema == EVAL_SCHEMA:
        return _evaluation(reader)
    raise BadSet(
        path, f"schema_version={schema!r} is not one that can be read: {SCHEMA}, {EVAL_SCHEMA}"
    )


def _values(path: Path) -> dict[str, Any]:
    if not path.parent.is_dir():
        raise RunError(f"{path.parent}: no such directory; a packed set is a directory")
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadSet(path, "is missing; without it the set is not complete") from None
    except OSError as error:
        raise BadSet(path, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BadSet(path, f"is not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise BadSet(path, "must be a JSON object")
    return values


def _training(given: "_Reader") -> Manifest:
    split = given.text("split")
    if split not in _SPLITS:
        given.refuse("split", f"must be one of {', '.join(_SPLITS)}")
    num_bins = given.count("num_bins")
    return Manifest(
        split=split,
        seq_len=given.count("seq_len"),
        num_bins=num_bins,
        num_examples=given.count("num_examples", 0),
        num_tokens=given.count("num_tokens"),
        max_choices=given.count("max_choices"),
        mix_components=given.names("mix_components"),
        files=given.files(num_bins),
        source=given.values.get("source"),
    )


def _evaluation(given: "_Reader") -> EvalManifest:
    num_bins = given.count("num_bins")
    return EvalManifest(
        name=given.text("name"),
        seq_len=given.count("seq_len"),
        num_bins=num_bins,
        num_rows=given.count("num_rows"),
        max_choices=given.count("max_choices"),
        files=given.files(num_bins),
        source=given.values.get("source"),
    )


@dataclass(frozen=True)
class _Reader:
    """Values by key, each of its type, or a refusal that names key and value."""

    path: Path
    values: dict[str, Any]

    def refuse(self, key: str, rule: str) -> NoReturn:
        if key not in self.values:
            raise BadSet(self.path, f"{key}: required, but not given")
        raise BadSet(self.path, f"{key}={json.dumps(self.values[key])}: {rule}")

    def count(self, key: str, least: int = 1) -> int:
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(key, f"must be a whole number of at least {least}")
        return int(value)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not value:
            self.refuse(key, "must be a text")
        return str(value)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(n, str) and n for n in value):
            self.refuse(key, "must be a list of names")
        if len(set(value)) < len(value):
            self.refuse(key, "names one component twice")
        return tuple(value)

    def files(self, num_bins: int) -> tuple[File, ...]:
        value = self.values.get("files")
        if not isinstance(value, list) or not value:
            self.refuse("files", "must be a list of at least one {name, num_bins}")
        files = []
        for entry in value:
            if not isinstance(entry, dict):
                self.refuse("files", "must be a list of {name, num_bins}")
            inner = _Reader(self.path, entry)
            files.append(File(inner.text("name"), inner.count("num_bins")))
            if Path(files[-1].name).name != files[-1].name:
                inner.refuse("name", "must be the name of a file in the directory of the manifest")
        if len({file.name for file in files}) < len(files):
            self.refuse("files", "names one file twice")
        if (total := sum(file.num_bins for file in files)) != num_bins:
            self.refuse("num_bins", f"must be the sum over files, which is {total}")
        return tuple(files)
