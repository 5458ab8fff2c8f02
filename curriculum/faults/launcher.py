"""What a run has to do with what starts it again when it fails: `torchrun`, or a job of Slurm.

A start that fails for its configuration or its data fails again, however often it is started. So it
ends `torchrun` too, the way a user would: by SIGTERM. A job's script looks for a file.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

NO_RESTART = "CURRICULUM_NO_RESTART"  # names the file that a job's script looks for

_PROGRAMS = ("torchrun", "torch.distributed.run", "torch/distributed/run.py")


def will_restart() -> bool:
    """True if this process was started by a torchrun that would start it once more."""
    try:
        done = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        return done < int(os.environ["TORCHELASTIC_MAX_RESTARTS"])
    except (KeyError, ValueError):
        return False


def no_restart() -> None:
    """Keep the launcher that started this process from starting it again.

    Whichever rank comes first ends torchrun, which then ends the others. Where the parent is
    another program that uses torchrun's agent, nothing is done: it has its own reasons to restart.
    """
    if mark := os.environ.get(NO_RESTART):
        with suppress(OSError):
            Path(mark).touch()
    if not will_restart():
        return
    parent = os.getppid()
    try:
        command = Path(f"/proc/{parent}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return
    if any(program in command for program in _PROGRAMS):
        os.kill(parent, signal.SIGTERM)
