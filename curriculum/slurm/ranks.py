"""The ranks of a job step: what `srun` tells a process, in the words that `torchrun` uses.

With these, `srun python -m curriculum run ...` is one run of as many ranks as `srun` starts tasks.
"""

import os
import re
from collections.abc import MutableMapping

_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that systems hand out by themselves


def adopt(place: MutableMapping[str, str] = os.environ) -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Only in a step of several tasks, and not below a launcher that has set them.
    """
    if "RANK" in place or int(place.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return
    tasks = tasks_per_node(place["SLURM_STEP_TASKS_PER_NODE"])
    place["RANK"] = place["SLURM_PROCID"]
    place["WORLD_SIZE"] = place["SLURM_STEP_NUM_TASKS"]
    place["LOCAL_RANK"] = place["SLURM_LOCALID"]
    place["LOCAL_WORLD_SIZE"] = str(tasks[int(place["SLURM_NODEID"])])
    place.setdefault("MASTER_ADDR", first_host(place["SLURM_STEP_NODELIST"]))
    place.setdefault("MASTER_PORT", str(_port(place)))


def first_host(nodes: str) -> str:
    """The first name in a list of nodes, e.g. `gpu[07-09,12],cpu1` -> `gpu07`."""
    written_out = re.sub(r"\[(\w+)[^\]]*\]", r"\1", nodes)
    return written_out.partition(",")[0]


def tasks_per_node(text: str) -> list[int]:
    """The number of tasks on each node, e.g. `8(x2),4` -> [8, 8, 4]."""
    numbers = []
    for part in text.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        numbers += [int(count)] * int(times or "1")
    return numbers


def _port(place: MutableMapping[str, str]) -> int:
    """The same for all tasks of a step, another one for another step."""
    return _FIRST_PORT + (int(place["SLURM_JOB_ID"]) + int(place["SLURM_STEP_ID"])) % _PORTS
