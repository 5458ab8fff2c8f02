"""Facts on disk, by the content of the files: `cache.dir/audit/<key>.npz`.

Whatever is wrong with a cached file, it is only collected again.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from curriculum.data.audit.collect import collect
from curriculum.data.audit.facts import HASHES, NUMBERS, SCHEMA_VERSION, Facts
from curriculum.data.sources import Source, digest
from curriculum.files import write_bytes

_META = "meta"


def facts_of(files: Sequence[Path], task: str, cache_dir: str, workers: int = 1) -> Facts:
    """The facts of some files, read once per content, by so many processes.

    Raises `RunError` for files that cannot be read.
    """
    key = hashlib.sha256(f"{SCHEMA_VERSION}/{task}/{digest(files, cache_dir)}".encode())
    path = Path(cache_dir) / "audit" / f"{key.hexdigest()[:32]}.npz"
    names = [str(file) for file in files]
    found = _load(path, len(names))
    if found is None:
        found = collect(Source(files, cache_dir), task, workers)
        write_bytes(path, _packed(found))
    return replace(found, files=names)


def _packed(facts: Facts) -> bytes:
    meta = {
        "records": facts.records,
        "bad": facts.bad,
        "texts": {str(value): text for value, text in facts.texts.items()},
        "separators": facts.separators,
    }
    buffer = io.BytesIO()
    columns = facts.hashes | facts.numbers
    columns[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(buffer, **columns)
    return buffer.getvalue()


def _load(path: Path, files: int) -> Facts | None:
    """None if the file is absent, damaged, or of another number of files."""
    try:
        with np.load(path, allow_pickle=False) as columns:
            meta = json.loads(columns[_META].tobytes())
            facts = Facts(
                records=int(meta["records"]),
                bad=int(meta["bad"]),
                hashes={name: columns[name] for name in HASHES},
                numbers={name: columns[name] for name in NUMBERS},
                texts={int(value): text for value, text in meta["texts"].items()},
                separators=list(meta["separators"]),
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    return facts if len(facts.separators) == files else None
