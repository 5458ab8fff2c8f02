"""What tests of faults share: a server of processes, and runs that nothing interrupted."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_plan import command, lay_out
from faults import Server, start


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, tokenizer and plan, and nothing else."""
    return lay_out(tmp_path_factory.mktemp("faults") / "laid_out")


@pytest.fixture(scope="session")
def whole(
    server: Server, laid_out: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """The directory of the uninterrupted run on so many ranks."""
    found: dict[int, Path] = {}

    def run(ranks: int) -> Path:
        if ranks not in found:
            root = tmp_path_factory.mktemp("faults") / f"whole_{ranks}"
            shutil.copytree(laid_out, root)
            one = start(server, root, command(), ranks=ranks)
            assert one.wait() == [0] * ranks, one.text()
            found[ranks] = root
        return found[ranks]

    return run
