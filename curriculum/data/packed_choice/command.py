"""`data pack-choice IN... OUT key=value ...` and `data unpack-choice DIR [N]`."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curriculum.config import Model
from curriculum.data.counts import Report
from curriculum.data.packed_choice.manifest import EvalManifest, Manifest, read_manifest
from curriculum.data.packed_choice.options import PackOptions, pack_options, unpack_options
from curriculum.data.packed_choice.packer import Packed, pack_records, read_choices
from curriculum.data.packed_choice.provenance import difference, tokenizer_note
from curriculum.data.packed_choice.reader import PackedChoice, open_eval, open_packed
from curriculum.data.packed_choice.targets import TARGETS_FILE, read_targets
from curriculum.data.packed_choice.text import bin_text
from curriculum.data.packed_choice.writer import obstacle, write_eval, write_packed
from curriculum.data.sources import Source, digest, expand
from curriculum.data.tokenizer import load_tokenizer, tokenizer_digest
from curriculum.errors import UserError
from curriculum.word_options import parted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_OVERWRITE = ", or give overwrite=true"
_PACK = (
    "python -m curriculum data pack-choice IN... OUT seq_len=512 split=train|val|eval "
    "model.tokenizer=DIR [key=value ...]"
)
_UNPACK = "python -m curriculum data unpack-choice DIR [N] [model.tokenizer=DIR]"
_PACK_HELP = f"""usage: {_PACK}

Packs records of task choice (docs/records.md) into a set that a choice phase or a choice eval
reads (docs/choice.md).

  IN    paths or globs of choice records
  OUT   a new directory

  seq_len=512              tokens of a bin at most; required
  split=train              train | val | eval (an evaluation set, its targets beside it); required
  model.tokenizer=DIR      directory of a fast tokenizer; required
  model.chat_template=...  a Jinja text or a .jinja file instead of the tokenizer's own
  spellings=["{{}}"]         how a choice may be written behind its prompt, in order of preference;
                           ["{{}}"," {{}}"]: as it is, else with a space before it
  answer_prefix=TEXT       what the assistant says before the choice
  on_over_long=error       drop: leave out records that do not fit seq_len; truncate_source: leave
                           them out, too, since a choice record has no source that may be cut
  on_bad_record=error      skip: leave bad records out and count them
  strict=false             true: fields that a record does not know are errors
  mix_components=["a"]     names and order of the mixture; else all that occur, sorted
  name=TEXT                of an evaluation set; else the name of OUT
  seed=0                   order of the bins of a training set
  overwrite=false          true: a set in OUT is replaced
  output=table             json: print the report as one JSON object
  cache_dir=.curriculum/cache   where compressed and columnar sources are unpacked
"""
_log = logging.getLogger(__name__)
_UNPACK_HELP = f"""usage: {_UNPACK}

Prints a packed set as text: all bins, or bin N, from 0.

  model.tokenizer=DIR      directory of a fast tokenizer; else the packer's, where it is still there
"""


def pack(argv: Sequence[str]) -> int:
    """Pack records and print what was done; 0. `UserError` for a wrong command, `RunError` for
    records that cannot be packed."""
    if any(word in ("-h", "--help") for word in argv):
        print(_PACK_HELP, end="")
        return 0
    paths, words = parted(argv)
    if len(paths) < 2 or any(path.startswith("-") for path in paths):
        given = f"got {' '.join(paths)}" if paths else "none given"
        raise UserError(f"data pack-choice takes IN and OUT, {given}; usage: {_PACK}")
    options, out = pack_options(words), Path(paths[-1]).expanduser()
    files, missing = expand(paths[:-1])
    if missing:
        kind = "a directory" if Path(missing[0]).is_dir() else "no such file"
        raise UserError(f"{missing[0]}: {kind}; IN is a file or a glob that matches some")
    if out.is_file():
        raise UserError(f"{out}: a file; OUT is a directory")
    if reason := obstacle(out, options.overwrite):
        raise UserError(f"{out}: {reason}; name another OUT{_OVERWRITE * (not options.overwrite)}")
    tokenizer = load_tokenizer(_model(options.tokenizer, options.chat_template))
    source, report = Source(files, options.cache_dir), Report()
    packed = pack_records(
        read_choices(source, report, strict=options.strict, on_bad_record=options.on_bad_record),
        tokenizer,
        seq_len=options.seq_len,
        split=options.split,
        spellings=options.spellings,
        answer_prefix=options.answer_prefix,
        on_over_long=options.on_over_long,
        on_bad_record=options.on_bad_record,
        mix_components=options.mix_components,
        seed=options.seed,
        report=report,
        what=", ".join(paths[:-1]),
    )
    figures = _figures(packed, len(source))
    _write(packed, out, options, _source(files, options, tokenizer, figures))
    if options.output == "json":
        print(json.dumps({"out": str(out), **figures}, ensure_ascii=False))
    else:
        print(_table(packed, figures, files, out))
    return 0


def unpack(argv: Sequence[str]) -> int:
    """Print the bins of a set, or one of them; 0."""
    if any(word in ("-h", "--help") for word in argv):
        print(_UNPACK_HELP, end="")
        return 0
    paths, words = parted(argv)
    if not 1 <= len(paths) <= 2 or (len(paths) == 2 and not paths[1].isdigit()):
        raise UserError(f"data unpack-choice takes DIR and N, a bin from 0; usage: {_UNPACK}")
    options, manifest = unpack_options(words), read_manifest(paths[0])
    evaluation = isinstance(manifest, EvalManifest)
    opened = open_eval if evaluation else open_packed
    bins = opened(paths[0], vocab_size=None)
    tokenizer = _tokenizer(options.tokenizer, manifest.source)
    if tokenizer is not None and (why := difference(manifest.source, tokenizer)):
        _log.warning("%s: %s", paths[0], why)
    numbers = range(len(bins))
    if len(paths) == 2:
        if int(paths[1]) >= len(bins):
            raise UserError(f"{paths[1]}: {paths[0]} has {len(bins)} bins, from 0 on")
        numbers = range(int(paths[1]), int(paths[1]) + 1)
    else:
        print(_headline(bins, manifest), end="\n\n")
    mix = () if isinstance(manifest, EvalManifest) else manifest.mix_components
    targets = _targets(bins) if evaluation else None
    for number in numbers:
        print(bin_text(bins[number], number, tokenizer, mix, targets), end="\n\n")
    return 0


def _targets(bins: PackedChoice) -> list[np.ndarray] | None:
    """The target distribution of each row of an evaluation set, by row id; None if there is no
    file of them."""
    file = bins.directory / TARGETS_FILE
    if not file.exists():
        return None
    counts = np.zeros(int(bins.rows.sum()), np.int64)
    for number in range(len(bins)):
        one = bins[number]
        counts[one.row_ids] = one.choice_counts
    return np.split(read_targets(file, counts), np.cumsum(counts)[:-1])


def _headline(bins: PackedChoice, manifest: Manifest | EvalManifest) -> str:
    kind = (
        f"evaluation set {manifest.name}"
        if isinstance(manifest, EvalManifest)
        else f"split {manifest.split}, mixture {', '.join(manifest.mix_components) or 'none'}"
    )
    return (
        f"{bins.directory}: {kind}; {len(bins):,} bins of {manifest.seq_len:,} tokens, "
        f"{bins.rows.sum():,} rows of up to {manifest.max_choices} choices, "
        f"{bins.tokens.sum():,} tokens in all"
    )


def _write(packed: Packed, out: Path, options: PackOptions, source: Any) -> None:
    if options.split == "eval":
        name = options.name or out.resolve().name
        write_eval(
            out, packed, name=name, seq_len=options.seq_len, source=source,
            targets=packed.targets, overwrite=options.overwrite,
        )  # fmt: skip
    else:
        write_packed(
            out, packed, split=options.split, seq_len=options.seq_len, source=source,
            mix_components=packed.mix_components, overwrite=options.overwrite,
        )  # fmt: skip


def _figures(packed: Packed, records: int) -> dict[str, Any]:
    """What was packed and what was left out, as plain values."""
    fewest, most = packed.choice_range
    return {
        "records": {"in": records, "packed": packed.rows},
        "dropped": dict(sorted(packed.report.drops.items())),
        "dropped_at": packed.report.dropped_at,
        "bins": len(packed),
        "tokens": packed.tokens,
        "fill": packed.tokens / (len(packed) * packed.seq_len),
        "choices": {"fewest": fewest, "most": most},
        "spellings": dict(packed.spelled),
        "mix_components": list(packed.mix_components),
    }


def _source(
    files: Sequence[Path],
    options: PackOptions,
    tokenizer: "PreTrainedTokenizerFast",
    figures: dict[str, Any],
) -> dict[str, Any]:
    """How the set was made, for its manifest."""
    return {
        "files": [str(file) for file in files],
        "sha256": digest(files, options.cache_dir),
        "tokenizer": tokenizer_note(tokenizer, options.tokenizer),
        "chat_template": tokenizer.chat_template,
        "spellings": options.spellings,
        "answer_prefix": options.answer_prefix,
        "on_over_long": options.on_over_long,
        "on_bad_record": options.on_bad_record,
        "records": figures["records"],
        "dropped": figures["dropped"],
    }


def _table(packed: Packed, figures: dict[str, Any], files: Sequence[Path], out: Path) -> str:
    records, choices = figures["records"], figures["choices"]
    spelled = ", ".join(f"{spelling!r} {n}" for spelling, n in figures["spellings"].items())
    lines = [
        f"{', '.join(map(str, files))} -> {out}",
        f"records    {records['in']:,} in, {records['packed']:,} packed",
        f"choices    {choices['fewest']} to {choices['most']} a record, spelled {spelled}",
        f"bins       {figures['bins']:,} of {packed.seq_len:,} tokens, {figures['fill']:.1%} full: "
        f"{figures['tokens']:,} tokens in all",
        f"mixture    {', '.join(figures['mix_components']) or 'none'}",
    ]
    for reason, count in figures["dropped"].items():
        first = figures["dropped_at"][reason][0]
        lines.append(f"left out   {count:,} x {reason}, e.g. {first}")
    return "\n".join(lines)


def _model(tokenizer: str, chat_template: str | None) -> Model:
    return Model(
        name="", path=None, config=None, tokenizer=tokenizer, chat_template=chat_template,
        parameters=None,
    )  # fmt: skip


def _tokenizer(given: str | None, source: Any) -> "PreTrainedTokenizerFast | None":
    """The tokenizer that is given, else the packer's, if it is where it was and the same."""
    if given is not None:
        return load_tokenizer(_model(given, None))
    try:
        noted = dict(source["tokenizer"])
        tokenizer = load_tokenizer(_model(str(noted["directory"]), None))
    except (TypeError, KeyError, ValueError, UserError):  # none noted, or not there any more
        return None
    return tokenizer if tokenizer_digest(tokenizer) == noted.get("sha256") else None
