"""Checkpoint directories, and the store of finished phases by key. Needs no torch.

`directories` says what a checkpoint is on disk, `retention` which of a run's stay, `entries` what
lies in the store, `claim` and `use` who trains and who uses a phase, `why` and `gc` answer the verb
`store`.
"""

from curriculum.store.directories import (
    INDEX,
    KEY_RECORD,
    MARKER,
    SCHEMA,
    clear_unfinished,
    commit,
    committed,
    corruption,
    crc32,
    damage,
    discard,
    finished,
    keep,
    read_meta,
    step_directories,
)

__all__ = [
    "INDEX",
    "KEY_RECORD",
    "MARKER",
    "SCHEMA",
    "clear_unfinished",
    "commit",
    "committed",
    "corruption",
    "crc32",
    "damage",
    "discard",
    "finished",
    "keep",
    "read_meta",
    "step_directories",
]
