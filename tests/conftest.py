"""Test processes that run side by side compute on one thread each: spinning threads that share a
core slow each other down many times over."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
