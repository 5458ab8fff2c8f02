"""What the hardware can do at best: the figures that speed and memory are measured against."""

import resource
import sys
import time

import torch

_ENOUGH_SECONDS = 0.02
_LARGEST = 8192
_ROUNDS = 3


def gemm_peak(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of one square matrix product, the best of a few, on this process's
    threads or GPU.

    The size grows until a product takes a fiftieth of a second, so that slow types are measured
    too. On a CPU where several processes run at once they should all measure at once.
    """
    size, best = 256, 0.0
    while True:
        a = torch.ones(size, size, dtype=dtype, device=device)
        out = torch.empty_like(a)
        seconds = min(_timed(a, out) for _ in range(_ROUNDS))
        best = max(best, 2 * size**3 / seconds)
        if seconds > _ENOUGH_SECONDS or size >= _LARGEST:
            return best
        size *= 2


def _timed(a: torch.Tensor, out: torch.Tensor) -> float:
    _wait(a.device)
    began = time.perf_counter()
    torch.mm(a, a, out=out)
    _wait(a.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Bytes this process has held at most: allocated on its GPU, else resident in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
