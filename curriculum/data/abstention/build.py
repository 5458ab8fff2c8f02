"""Rebuilds a set: two passes over the source, and what a record becomes."""

import gzip
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from curriculum.data.abstention.choose import Choice, choose
from curriculum.data.abstention.detect import Detection, detect
from curriculum.data.abstention.matcher import known_banks, matcher_for
from curriculum.data.abstention.options import Options
from curriculum.data.abstention.passages import holding
from curriculum.data.abstention.scan import Scan, lines_of, scan, target_key
from curriculum.data.abstention.slots import realise
from curriculum.data.sources import Source, stats
from curriculum.errors import RunError
from curriculum.files import replacing

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_GZIP_LEVEL = 6


@dataclass(frozen=True)
class Built:
    """What was found, chosen and written. `targets`: uint64 per record, keys of the new targets.
    `dropped_fields`: fields left out of rewritten records."""

    scan: Scan
    found: Detection
    choice: Choice
    targets: np.ndarray
    dropped_fields: Counter[str]


def build(files: Sequence[Path], out: Path, options: Options, bank: tuple[str, ...]) -> Built:
    """Rebuild the set in `files` as `out`, which appears complete or not at all.

    Memory grows by some tens of bytes a record. Raises `RunError` for bad records, for a share that
    cannot be reached, and if a file changes meanwhile.
    """
    before = stats(files)
    source = Source(files, options.cache_dir)
    matcher = matcher_for(tuple(dict.fromkeys((*known_banks(), *bank))))
    scanned = scan(source, matcher, options.on_bad_record)
    found = detect(scanned, options, partial(field_of, source, "answer"))
    choice = choose(scanned, found, options, bank, partial(field_of, source, "question"))
    targets, dropped = scanned.target.copy(), Counter[str]()
    with replacing(out) as raw, _compressed(raw, out.name) as file:
        for row, _, line in lines_of(source, np.flatnonzero(choice.kept), "writing"):
            record = orjson.loads(line)
            has_reasoning = bool(record.get("reasoning"))
            record = rebuilt(record, row, choice, bank)
            if choice.paraphrase[row] >= 0:
                targets[row] = target_key(record["answer"])
                dropped["reasoning"] += has_reasoning
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        if stats(files) != before:
            raise RunError(
                f"{', '.join(map(str, files))}: changed while it was read; start again once it is "
                "complete"
            )
    return Built(scanned, found, choice, targets, +dropped)


def field_of(source: Source, name: str, row: int) -> str:
    """A text of one record, as it stands in the source."""
    return str(orjson.loads(source[row][1])[name])


def rebuilt(
    record: dict[str, Any], row: int, choice: Choice, bank: tuple[str, ...]
) -> dict[str, Any]:
    """The record as it is written: the question first, `answerable` said, the rest in its order.

    A rewritten one loses `reasoning`, which would contradict it.
    """
    if choice.synthesized[row]:
        held = holding(record["answer"], record["passages"])
        record["passages"] = [
            text for text, is_in in zip(record["passages"], held, strict=True) if not is_in
        ]
    number = int(choice.paraphrase[row])
    if number >= 0:
        record["answer"] = realise(bank[number], record["question"])
        record.pop("reasoning", None)
    record["answerable"] = number < 0
    return {"question": record.pop("question"), **record}


@contextmanager
def _compressed(raw: BinaryIO, name: str) -> Iterator[Any]:
    """The file as its name says. Nothing of the moment or the machine goes into the bytes; they
    still depend on the version of the compressing library."""
    if name.endswith(".gz"):
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as file:
            yield file
    elif name.endswith(".zst"):
        import pyarrow as pa

        # The stream closes what it writes to, and `raw` has still to be synced.
        duplicate = os.fdopen(os.dup(raw.fileno()), "wb")
        with pa.CompressedOutputStream(pa.PythonFile(duplicate, "w"), "zstd") as file:
            yield file
    else:
        yield raw
