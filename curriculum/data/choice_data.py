"""Where the windows of a choice phase come from: a packed directory, or records packed here.

`data.sources` and `data.heldout` name one directory with a packed set (`manifest.json`), which is
opened as it is, or files of choice records. Those are packed into `cache.dir/choice/<key>/`; the
key is a hash of all that decides the content: the bytes of the files, tokenizer, template, length
of a bin, spellings, policies, and for training data what shuffles its bins. Either way every bin is
checked before it is used.

`find` looks without reading any record or bin: sets that were packed here are found again by the
stats of their files.
"""

import glob
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum.config import Config, Model, Phase
from curriculum.data.choice_set import ChoiceSet
from curriculum.data.counts import Report
from curriculum.data.packed_choice import (
    PackedChoice,
    is_packed,
    open_packed,
    read_manifest,
    write_packed,
)
from curriculum.data.packed_choice.packer import Split, pack_records, read_choices
from curriculum.data.packed_choice.provenance import require_same_tokenizer, tokenizer_note
from curriculum.data.packed_choice.tokens import SLOT
from curriculum.data.pointers import hashed, noted, pointer_of
from curriculum.data.sources import Source, digest, expand
from curriculum.data.tokenizer import require_chat_template, tokenizer_digest
from curriculum.errors import RunError, UserError
from curriculum.files import locked, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPLITS: dict[str, Split] = {"train": "train", "heldout": "val"}

# part of the key of every set in the cache; raise it with any change of what records turn into
_VERSION = 2

_log = logging.getLogger(__name__)


def data_files(phase: Phase, patterns: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files that a phase's patterns name, those of packed directories included, and the
    patterns that name none."""
    files: dict[Path, None] = {}
    missing: list[str] = []
    for pattern in patterns:
        packed = packed_directories(pattern) if phase.task == "choice" else []
        for directory in packed:
            names = ["manifest.json", *(file.name for file in read_manifest(directory).files)]
            files.update(dict.fromkeys(directory / name for name in names))
        if not packed:
            found, absent = expand([pattern])
            files.update(dict.fromkeys(found))
            missing += absent
    return list(files), missing


def packed_directories(pattern: str) -> list[Path]:
    """The directories that a pattern names and that hold a packed set."""
    literal = Path(pattern).expanduser()
    places = [literal] if literal.is_dir() else sorted(glob.glob(str(literal), recursive=True))
    return [Path(place) for place in places if os.path.isdir(place) and is_packed(place)]


def prepare(
    config: Config, phase: str, split: str, tokenizer: "PreTrainedTokenizerFast"
) -> ChoiceSet:
    """The bins of a phase's training data (`train`) or held-out data (`heldout`), all checked.

    `config` is scaled. Of several processes that ask at once, one packs and the others wait.
    Raises `UserError` or `RunError`: nothing there, a set of another split, a bin that breaks a
    rule of the format, records that the policies of the phase call errors.
    """
    settings = config.plan.phases[phase]
    directory = _packed_directory(config, phase, split)
    if directory is None:
        directory = _packed_here(config, phase, split, tokenizer)
    packed = open_packed(
        directory,
        vocab_size=vocabulary_of(config.model) or len(tokenizer),
        seq_len=settings.seq_len,
        split=SPLITS[split],
        cache_dir=config.cache.dir,
    )
    require_same_tokenizer(directory, packed.manifest, tokenizer)
    if split == "train" and not packed.weighted.any():
        raise RunError(
            f"{_option(phase, split)}: no row of {directory} has a weight above 0; there is "
            "nothing to train on"
        )
    return ChoiceSet(packed, config.seed, phase)


def find(config: Config, phase: str, split: str) -> ChoiceSet | None:
    """The set that `prepare` would give, no bin checked; None where it is not packed yet."""
    directory = _packed_directory(config, phase, split)
    if directory is None:
        inputs, patterns = _inputs(config, phase, split), _patterns(config, phase, split)
        directory = noted(config, "choice", inputs, patterns)
        if directory is None or not is_packed(directory):
            return None
    return ChoiceSet(PackedChoice(directory, read_manifest(directory)), config.seed, phase)


def _patterns(config: Config, phase: str, split: str) -> list[str]:
    data = config.plan.phases[phase].data
    return data.patterns if split == "train" else data.heldout


def _packed_directory(config: Config, phase: str, split: str) -> Path | None:
    """The packed directory that the patterns name, None if they name files of records."""
    patterns = _patterns(config, phase, split)
    found = [directory for pattern in patterns for directory in packed_directories(pattern)]
    if not found:
        return None
    if len(found) > 1 or len(patterns) > 1:
        raise UserError(
            f"{_option(phase, split)}={patterns}: a choice phase takes one packed directory, or "
            "files of records; pack the records of several sets into one by data pack-choice"
        )
    return found[0]


def _option(phase: str, split: str) -> str:
    return f"plan.phases.{phase}.data.{'sources' if split == 'train' else 'heldout'}"


def _packed_here(
    config: Config, phase: str, split: str, tokenizer: "PreTrainedTokenizerFast"
) -> Path:
    """The set in the cache that the phase's records were packed into, packed now if need be."""
    data = config.plan.phases[phase].data
    require_chat_template(phase, "choice", tokenizer)
    if data.weights:
        raise UserError(
            f"{_option(phase, split)}: sources of choice records have no weights of their own; "
            "give each record a `weight`"
        )
    files, missing = expand(_patterns(config, phase, split))
    if missing:
        raise RunError(
            f"{_option(phase, split)}: no file matches {', '.join(missing)} (from {os.getcwd()})"
        )
    pointer = pointer_of(config, "choice", _inputs(config, phase, split), files)
    inputs = _inputs(config, phase, split) | {
        "source": digest(files, config.cache.dir),
        "tokenizer": tokenizer_digest(tokenizer),
        "chat_template": tokenizer.chat_template,
    }
    directory = Path(config.cache.dir) / "choice" / hashed(inputs)
    with locked(directory.with_suffix(".lock")):
        if not is_packed(directory):
            _pack(config, phase, split, tokenizer, files, directory)
    if pointer is not None and not pointer.is_file():
        write_json(pointer, {"key": directory.name})
    return directory


def _pack(
    config: Config,
    phase: str,
    split: str,
    tokenizer: "PreTrainedTokenizerFast",
    files: Sequence[Path],
    directory: Path,
) -> None:
    settings, report = config.plan.phases[phase], Report()
    data, source = settings.data, Source(files, config.cache.dir)
    packed = pack_records(
        read_choices(source, report, strict=data.strict, on_bad_record=data.on_bad_record),
        tokenizer,
        seq_len=settings.seq_len,
        split=SPLITS[split],
        spellings=data.spellings or [SLOT],
        answer_prefix=data.answer_prefix,
        on_over_long=data.on_over_long,
        on_bad_record=data.on_bad_record,
        seed=int(hashed([config.seed, phase])[:8], 16),
        report=report,
        what=f"phase {phase}, {split} data",
    )
    write_packed(
        directory,
        packed,
        split=SPLITS[split],
        seq_len=settings.seq_len,
        mix_components=packed.mix_components,
        source={
            "files": [str(file) for file in files],
            "tokenizer": tokenizer_note(tokenizer, config.model.tokenizer or config.model.path),
            "dropped": dict(report.drops),
        },
        overwrite=True,
    )
    for reason, count in sorted(report.drops.items()):
        first = report.dropped_at[reason][0]
        _log.warning("phase %s: %s: left out: %d x %s, e.g. %s", phase, split, count, reason, first)
    _log.info(
        "phase %s: %s: %d choice records packed into %d bins", phase, split, packed.rows,
        len(packed),
    )  # fmt: skip


def _inputs(config: Config, phase: str, split: str) -> dict[str, Any]:
    """What decides the content of a set, apart from the bytes of source and tokenizer."""
    settings = config.plan.phases[phase]
    data = settings.data
    shared = {
        "version": _VERSION,
        "split": split,
        "seq_len": settings.seq_len,
        "spellings": data.spellings or [SLOT],
        "answer_prefix": data.answer_prefix,
        "on_bad_record": data.on_bad_record,
        "on_over_long": data.on_over_long,
        "strict": data.strict,
    }
    # held-out bins keep the order of their records, so phases and seeds share a set
    return shared | ({"seed": config.seed, "phase": phase} if split == "train" else {})


def vocabulary_of(model: Model) -> int | None:
    """How many tokens the model knows; None if that is not known without building it."""
    values = model.config
    if model.path is not None:
        file = Path(model.path) / "config.json"
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    values = values or {}
    known = values.get("vocab_size") or (values.get("text_config") or {}).get("vocab_size")
    return None if known is None else int(known)
