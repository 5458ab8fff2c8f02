"""A process that has imported what a run needs and starts each run as a fork of itself.

Killing runs by the hundred is cheap that way: what is killed is a whole process with the program's
own command line, and only the imports are shared. Requests come on stdin and answers go to stdout,
one JSON object a line:

    {"do": "start", "arguments": [...], "cwd": DIR, "env": {...}, "log": FILE,
     "events": FILE | null, "die_on": REGEX, "die_at": n | null, "die_by": n}   -> {"pid": n}
    {"do": "wait", "pid": n, "seconds": s}   -> {"status": code, -signal, or null while it runs}

`events`: where the process notes what it does to files below its directory (open, rename, remove,
link, make a directory), each right before it is done: `os.rename run/.final.tmp`. `die_at` n: it
sends itself the signal `die_by` at the n-th of them that `die_on` fits.
"""

import gc
import json
import os
import re
import sys
import time
import traceback

# what makes a start slow
import pandas  # noqa: F401
import pyarrow.dataset  # noqa: F401
import torch  # noqa: F401
import transformers.models.qwen3.modeling_qwen3  # noqa: F401

import curriculum.start  # noqa: F401
from curriculum import cli

_EVENTS = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.utime")


def main() -> None:
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answer = start(request) if request["do"] == "start" else wait(request)
        print(json.dumps(answer), flush=True)


def start(request: dict) -> dict:
    pid = os.fork()
    if pid:
        return {"pid": pid}
    code = 1
    try:
        become(request)
        code = cli.main(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(request: dict) -> None:
    """What a shell would do for a new process."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if request["events"]:
        root, pattern = os.path.realpath(request["cwd"]), re.compile(request["die_on"])
        watch_files(root, request["events"], pattern, request["die_at"], request["die_by"])


def watch_files(
    root: str, events: str, pattern: re.Pattern[str], die_at: int | None, die_by: int
) -> None:
    """Python's audit events tell of each thing before it is done, in whatever thread."""
    seen = [0]
    record = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def hear(event: str, arguments: tuple) -> None:
        if event not in _EVENTS:
            return
        path = arguments[0]
        path = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if not os.path.abspath(path).startswith(root + os.sep):
            return
        line = f"{event} {os.path.relpath(path, root)}"
        os.write(record, f"{line}\n".encode())
        if pattern.search(line):
            seen[0] += 1
            if seen[0] == die_at:
                os.kill(os.getpid(), die_by)

    sys.addaudithook(hear)


def wait(request: dict) -> dict:
    end = time.monotonic() + request["seconds"]
    while True:
        pid, status = os.waitpid(request["pid"], os.WNOHANG)
        if pid:
            return {"status": os.waitstatus_to_exitcode(status)}
        if time.monotonic() >= end:
            return {"status": None}
        time.sleep(0.005)


if __name__ == "__main__":
    main()
