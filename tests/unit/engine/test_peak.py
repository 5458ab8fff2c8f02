"""Figures of the hardware, and the clock of a step's parts."""

import time

import numpy as np
import torch

from curriculum.engine.peak import gemm_peak, peak_memory
from curriculum.engine.stopwatch import Stopwatch

CPU = torch.device("cpu")


def test_the_peak_is_at_least_what_a_product_here_reaches() -> None:
    a = np.ones((256, 256), np.float32)
    began = time.perf_counter()
    a @ a
    assert gemm_peak(torch.float32, CPU) > 0.2 * 2 * 256**3 / (time.perf_counter() - began)


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory(CPU)
    held = torch.ones(64 * 2**20)
    assert peak_memory(CPU) > before + 32 * 2**20
    assert before > 2**20 and held[0] == 1


def test_parts_add_up_until_they_are_taken() -> None:
    watch = Stopwatch(CPU)
    for part in ("forward", "backward", "forward"):
        with watch(part):
            time.sleep(0.01)
    taken = watch.take()
    assert set(taken) == {"forward", "backward"}
    assert taken["forward"] >= 0.02 and taken["backward"] >= 0.01
    assert watch.take() == {}
