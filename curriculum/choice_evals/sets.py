"""The sets of a run's choice evals: opened and checked before anything trains.

A set is a directory of the packed evaluation format, used as it is, or files of choice records.
Those are packed into the cache, under a name that follows from their content, the tokenizer and the
length of bins, with their targets beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from curriculum.choice_evals.storage import DIRECTORY
from curriculum.config import ChoiceEval, Config
from curriculum.data.choice_data import packed_directories, vocabulary_of
from curriculum.data.counts import Report
from curriculum.data.packed_choice import (
    EvalManifest,
    PackedChoice,
    is_packed,
    open_eval,
    write_eval,
)
from curriculum.data.packed_choice.manifest import MANIFEST_FILE
from curriculum.data.packed_choice.packer import pack_records, read_choices
from curriculum.data.packed_choice.provenance import require_same_tokenizer, tokenizer_note
from curriculum.data.sources import Source, digest, expand
from curriculum.data.tokenizer import tokenizer_digest
from curriculum.errors import RunError, UserError
from curriculum.files import locked
from curriculum.plan import keys

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# part of the name of every set in the cache; raise it with any change of what records turn into
_VERSION = 1


@dataclass(frozen=True)
class EvalSet:
    """A set that is ready to be evaluated. `digest` is of its content."""

    name: str
    bins: PackedChoice
    digest: str

    @property
    def directory(self) -> Path:
        return self.bins.directory

    @property
    def rows(self) -> int:
        assert isinstance(self.bins.manifest, EvalManifest)
        return self.bins.manifest.num_rows


def settings_of(config: Config) -> Iterator[tuple[str, str, ChoiceEval]]:
    """(phase, dotted place of its settings, settings) of the phases that have choice evals."""
    for phase in config.plan.phases:
        settings = config.choice_eval_of(phase)
        if settings is not None:
            own = config.plan.phases[phase].choice_eval is not None
            yield phase, f"plan.phases.{phase}.choice_eval" if own else "choice_eval", settings


def open_sets(config: Config, tokenizer: "PreTrainedTokenizerFast") -> dict[str, EvalSet]:
    """Every set of a (scaled) plan by name, checked.

    Raises `UserError` for a place that holds no set, and `BadSet` for a set that breaks a rule.
    Several processes may call this at once.
    """
    found: dict[str, EvalSet] = {}
    for _, place, settings in settings_of(config):
        for name, where in settings.sets.items():
            if name not in found:
                directory = _directory(config, f"{place}.sets.{name}", where, tokenizer)
                found[name] = _opened(config, name, directory, tokenizer)
    return found


def _opened(
    config: Config, name: str, directory: Path, tokenizer: "PreTrainedTokenizerFast"
) -> EvalSet:
    cache = config.cache.dir
    vocabulary = vocabulary_of(config.model) or len(tokenizer)
    bins = open_eval(directory, vocab_size=vocabulary, cache_dir=cache)
    require_same_tokenizer(directory, bins.manifest, tokenizer)
    files = [MANIFEST_FILE, *(file.name for file in bins.manifest.files)]
    found = EvalSet(name, bins, digest([directory / file for file in files], cache)[:20])
    if not found.rows:
        raise RunError(f"{directory}: choice eval {name} has no row to evaluate")
    return found


def _directory(config: Config, key: str, where: str, tokenizer: "PreTrainedTokenizerFast") -> Path:
    """The packed set at a place, packed first if records lie there."""
    directories = packed_directories(where)
    if len(directories) == 1:
        return directories[0]
    if directories:
        raise UserError(f"{key}={where}: {len(directories)} packed sets; a set is one directory")
    files, _ = expand([where])
    if not files:
        raise UserError(
            f"{key}={where}: neither a directory of a packed set (manifest.json) nor files of "
            "choice records; pack one with `data pack-choice`"
        )
    return _packed(config, key, files, tokenizer)


def _packed(
    config: Config, key: str, files: list[Path], tokenizer: "PreTrainedTokenizerFast"
) -> Path:
    """The set of the records in some files: in the cache, made unless it is there."""
    name = key.rpartition(".sets.")[2]
    seq_len = max(
        config.plan.phases[phase].seq_len
        for phase, _, settings in settings_of(config)
        if name in settings.sets
    )
    content = digest(files, config.cache.dir)
    template = tokenizer.chat_template
    content = keys.digest([_VERSION, content, tokenizer_digest(tokenizer), template, seq_len])
    directory = Path(config.cache.dir) / DIRECTORY / content
    with locked(directory.with_suffix(".lock")):
        if not is_packed(directory):
            what = f"choice eval {name}"
            report = Report()
            records = read_choices(Source(files, config.cache.dir), report)
            try:
                packed = pack_records(
                    records, tokenizer, seq_len=seq_len, split="eval", report=report, what=what
                )
            except RunError as error:
                remedy = "pack them by `data pack-choice split=eval` and name its directory here"
                raise RunError(
                    f"{error}\n{key}: records are packed without options here; for other "
                    f"spellings, an answer prefix or records left out, {remedy}"
                ) from None
            write_eval(
                directory,
                packed,
                name=name,
                seq_len=seq_len,
                source={
                    "files": [str(file) for file in files],
                    "tokenizer": tokenizer_note(
                        tokenizer, config.model.tokenizer or config.model.path
                    ),
                },
                targets=packed.targets,
                overwrite=True,
            )
    return directory
