"""What `srun` tells a task, read as `scontrol show hostnames` and Slurm's manual read it."""

import pytest

from curriculum.slurm.ranks import adopt, first_host, tasks_per_node


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[07-09,12],cpu1", "gpu07"),
        ("gpu[12,01]", "gpu12"),
        ("rack[1-2]node[05-06]", "rack1node05"),
        ("gpu-[1-4].cluster.org", "gpu-1.cluster.org"),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("text", "numbers"), [("8", [8]), ("8(x2),4", [8, 8, 4]), ("1(x3)", [1, 1, 1]), ("2,1", [2, 1])]
)
def test_tasks_per_node(text: str, numbers: list[int]) -> None:
    assert tasks_per_node(text) == numbers


def _task(**more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4112",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_STEP_NODELIST": "gpu[03-05]",
        "SLURM_PROCID": "4",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "2",
        **more,
    }


def test_a_task_is_the_rank_that_slurm_numbers() -> None:
    place = _task()
    adopt(place)
    ranks = {"RANK": "4", "WORLD_SIZE": "5", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert {name: place[name] for name in ranks} == ranks
    assert place["MASTER_ADDR"] == "gpu03"
    other = _task(SLURM_PROCID="1", SLURM_LOCALID="1", SLURM_NODEID="0")
    adopt(other)
    assert other["LOCAL_WORLD_SIZE"] == "2"
    assert other["MASTER_PORT"] == place["MASTER_PORT"]
    next_step = _task(SLURM_STEP_ID="1")
    adopt(next_step)
    assert next_step["MASTER_PORT"] != place["MASTER_PORT"]
    assert 1024 < int(place["MASTER_PORT"]) < 32768


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"SLURM_JOB_ID": "4112", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script
        _task(SLURM_STEP_NUM_TASKS="1"),
        _task(RANK="7"),  # a worker of torchrun
    ],
)
def test_elsewhere_nothing_is_set(place: dict[str, str]) -> None:
    before = dict(place)
    adopt(place)
    assert place == before


def test_an_address_that_was_given_stays() -> None:
    place = _task(MASTER_ADDR="10.0.0.3", MASTER_PORT="29500")
    adopt(place)
    assert (place["MASTER_ADDR"], place["MASTER_PORT"]) == ("10.0.0.3", "29500")
