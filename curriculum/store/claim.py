"""Who trains a phase: of several runs that need the same one at once, one does, the others wait.

A claim is a file in `.use/claims/` of the store, locked by the process that holds it; the kernel
frees it however that process ends.
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import TextIO


class Claim:
    """The right to train the phase of one key. Only one process of a run takes it."""

    def __init__(self, store: Path, key: str) -> None:
        self._path = store / ".use" / "claims" / key
        self._handle: TextIO | None = None

    def take(self) -> bool:
        """Take it, without waiting; False if another process holds it.

        Where no lock can be had (no permission, a file system without locks) it counts as taken:
        at worst two runs train the same phase.
        """
        while True:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                handle = self._path.open("w", encoding="utf-8")
            except OSError:
                return True
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                handle.close()
                return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
            if self._is_current(handle):
                self._handle = handle
                return True
            handle.close()  # its last holder removed it between our two calls

    def release(self) -> None:
        """Let others have it; nothing if it is not held."""
        if self._handle is not None:
            self._path.unlink(missing_ok=True)
            self._handle.close()
            self._handle = None

    def _is_current(self, handle: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(handle.fileno()), os.stat(self._path))
        except FileNotFoundError:
            return False
