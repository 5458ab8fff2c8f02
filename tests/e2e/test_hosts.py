"""Several hosts: network namespaces of this machine, joined by a virtual cable, each with a name of
its own. They share the file system, and `torchrun` on each of them finds the other by address."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import ENVIRONMENT
from fault_plan import RUN, TOTAL, command, committed, rows, weights
from faults import wait_until

pytestmark = pytest.mark.slow

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
CARD = "net0"


@dataclass(frozen=True)
class Host:
    """A host name of its own, and a network of its own where there is an address."""

    name: str
    address: str = ""

    def start(self, root: Path, words: list[str], log: str, **env: str) -> subprocess.Popen[str]:
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name, *words]
        entered = ["ip", "netns", "exec", self.name] if self.address else []
        with (root / log).open("w") as said:
            return subprocess.Popen(
                [*entered, *inside],
                cwd=root,
                env={**ENVIRONMENT, **env},
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def fail(self) -> None:
        """What happens to processes when the power goes."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable between them."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs the programs ip (iproute2) and unshare (util-linux)")
    number = os.getpid() % 250
    pair = tuple(Host(f"host-{k}-{os.getpid()}", f"10.231.{number}.{k}") for k in (1, 2))
    ends = [f"veth{os.getpid()}-{k}" for k in (1, 2)]
    try:
        for host in pair:
            _ip("netns", "add", host.name)
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end in zip(pair, ends, strict=True):
            inside = ("-n", host.name)
            _ip("link", "set", end, "netns", host.name)
            _ip(*inside, "link", "set", end, "name", CARD)
            _ip(*inside, "addr", "add", f"{host.address}/24", "dev", CARD)
            for device in ("lo", CARD):
                _ip(*inside, "link", "set", device, "up")
        yield pair
    finally:
        for host in pair:
            if Path("/run/netns", host.name).exists():
                host.fail()
                subprocess.run(["ip", "netns", "delete", host.name], check=False)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: ip {' '.join(words)}: {done.stderr}")


def torchrun(
    hosts: tuple[Host, Host], here: int, root: Path, max_restarts: int = 0
) -> subprocess.Popen[str]:
    host = hosts[here]
    words = [
        *(*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{hosts[0].address}:29500", "--rdzv-id", "one"),
        *("--rdzv-conf", f"is_host={1 - here}", "--local-addr", host.address),
        *("--max-restarts", str(max_restarts), "-m", "curriculum", *command()),
    ]
    card = {"GLOO_SOCKET_IFNAME": CARD, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return host.start(root, words, f"log_{here}.txt", **card)


def said(root: Path) -> str:
    return "\n".join((root / f"log_{here}.txt").read_text() for here in (0, 1))


@pytest.fixture
def root(laid_out: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(laid_out, tmp_path / "here"))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_is_lost_ends_the_other_and_the_same_command_goes_on(
    hosts: tuple[Host, Host], root: Path, whole: Callable[[int], Path], lost: int
) -> None:
    running = [torchrun(hosts, here, root) for here in (0, 1)]
    wait_until(lambda: len(rows(root)) >= 7)
    hosts[lost].fail()
    began = time.monotonic()
    assert running[1 - lost].wait(60) != 0, said(root)
    print(f"the other host ended after {time.monotonic() - began:.1f} s")
    running[lost].wait(10)
    assert committed(root) and not (root / RUN / "final").exists()

    running = [torchrun(hosts, here, root) for here in (0, 1)]
    assert [one.wait(120) for one in running] == [0, 0], said(root)
    assert "continuing after step" in said(root)
    assert rows(root) == rows(whole(2)) and len(rows(root)) == TOTAL
    assert weights(root) == weights(whole(2))


def test_a_host_that_comes_back_is_waited_for(
    hosts: tuple[Host, Host], root: Path, whole: Callable[[int], Path]
) -> None:
    stays = torchrun(hosts, 0, root, max_restarts=3)
    leaves = torchrun(hosts, 1, root, max_restarts=3)
    wait_until(lambda: len(rows(root)) >= 4)
    hosts[1].fail()
    leaves.wait(10)
    comes_back = torchrun(hosts, 1, root, max_restarts=3)
    assert [stays.wait(150), comes_back.wait(60)] == [0, 0], said(root)
    assert rows(root) == rows(whole(2)) and weights(root) == weights(whole(2))


def test_the_lock_of_a_host_that_was_lost_is_taken_over_once_it_is_silent(
    root: Path, whole: Callable[[int], Path]
) -> None:
    """Process ids of another host say nothing, even where they could be looked up."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("a host name of its own needs unshare and root")
    run = [sys.executable, "-m", "curriculum", *command("run.stale_seconds=60")]
    first = Host("first").start(root, run, "first.txt")
    wait_until(lambda: len(rows(root)) >= 3)
    first.kill()
    first.wait(10)
    lock = root / RUN / "run.lock"
    assert lock.exists()

    assert Host("second").start(root, run, "second.txt").wait(60) == 1
    (line,) = [x for x in (root / "second.txt").read_text().splitlines() if x.startswith("error")]
    assert " on first, since " in line and "by itself after 60 s" in line

    silent = time.time() - 61
    os.utime(lock, (silent, silent))
    assert Host("second").start(root, run, "second.txt").wait(120) == 0
    assert "taken over from" in (root / "second.txt").read_text()
    assert rows(root) == rows(whole(1)) and weights(root) == weights(whole(1))
