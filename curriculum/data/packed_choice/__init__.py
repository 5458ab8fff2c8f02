"""Prompts with a target distribution over their answer choices, packed into bins on disk.

The format is `simile-packed-choice/v2`, and `simile-packed-choice-eval/v1` for evaluation sets
(docs/choice.md): a directory with Arrow IPC files beside one `manifest.json`. One row is one bin:
segments laid end to end, some of whose positions predict an answer among a few tokens.

    bins       one bin as arrays
    manifest   what `manifest.json` says, and whether a directory holds such a set
    columns    a record batch as flat arrays; bins from and to it
    arrow      the Arrow IPC files of a set
    checks     every rule of the format, on flat arrays; what breaks one is named
    reader     a checked set as a sequence of bins
    writer     bins to a set that is whole or absent
    targets    what an evaluation set is compared with, beside it
    provenance which tokenizer a set's ids are of
    tokens     which token a choice is, behind its prompt
    packer     records of task `choice` to bins
    text       a bin as a person reads it
    options, command   `data pack-choice` and `data unpack-choice`
"""

from curriculum.data.packed_choice.bins import Bin
from curriculum.data.packed_choice.manifest import (
    EVAL_SCHEMA,
    SCHEMA,
    EvalManifest,
    Manifest,
    is_packed,
    read_manifest,
)
from curriculum.data.packed_choice.packer import Packed, pack_records, read_choices
from curriculum.data.packed_choice.reader import PackedChoice, open_eval, open_packed
from curriculum.data.packed_choice.refusal import BadSet
from curriculum.data.packed_choice.targets import TARGETS_FILE, read_targets
from curriculum.data.packed_choice.writer import WHOLE, write_eval, write_packed

__all__ = [
    "EVAL_SCHEMA",
    "SCHEMA",
    "TARGETS_FILE",
    "WHOLE",
    "BadSet",
    "Bin",
    "EvalManifest",
    "Manifest",
    "Packed",
    "PackedChoice",
    "is_packed",
    "open_eval",
    "open_packed",
    "pack_records",
    "read_choices",
    "read_manifest",
    "read_targets",
    "write_eval",
    "write_packed",
]
