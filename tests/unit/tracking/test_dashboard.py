"""The dashboard: which store, clear errors, and a real server on a real store."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from curriculum.errors import RunError, UserError
from curriculum.tracking.dashboard import find_store, main


@pytest.fixture(autouse=True)
def no_mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_PORT"):
        monkeypatch.delenv(name, raising=False)


def make_run(runs: Path, name: str, age: float) -> Path:
    directory = runs / name
    directory.mkdir(parents=True)
    (directory / "mlflow.db").touch()
    os.utime(directory / "mlflow.db", (1e9 - age, 1e9 - age))
    return directory


def test_the_store_is_the_named_one_then_the_environment_then_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    old, new = make_run(runs, "corrective/demo", 9), make_run(runs, "corrective/tiny", 1)
    assert find_store(None, runs) == f"sqlite:///{new}/mlflow.db"
    assert find_store(str(old), runs) == f"sqlite:///{old}/mlflow.db"
    assert find_store(str(old / "mlflow.db"), runs) == f"sqlite:///{old}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////elsewhere.db")
    assert find_store(None, runs) == "sqlite:////elsewhere.db"
    assert find_store(str(old), runs) == f"sqlite:///{old}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:hunter2@host")
    with pytest.raises(UserError, match=r"MLFLOW_TRACKING_URI=https://\*\*\*@host is a server"):
        find_store(None, runs)


def test_the_store_of_a_run_that_tracks_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("tracking: {uri: 'sqlite:////shared.db'}\n")
    assert find_store(str(tmp_path), tmp_path) == "sqlite:////shared.db"


def test_errors_are_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^dashboard: no mlflow\.db under [^\n]*runs/; [^\n]*$"):
        main(["--runs", str(tmp_path / "runs")])
    with pytest.raises(UserError, match=r"^dashboard: [^\n]*nowhere: no mlflow\.db [^\n]*$"):
        main([str(tmp_path / "nowhere")])
    run = make_run(tmp_path, "run", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^dashboard: port {port} [^\n]* --port$"):
            main([str(run), "--port", str(port)])
    with pytest.raises(UserError, match="port 99999"):
        main([str(run), "--port", "99999"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="mlflow is not installed; pip install mlflow"):
        main([str(run)])


def test_it_serves_the_store_and_ends_with_its_server(run_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = (
        "import sys; from curriculum.tracking.dashboard import main; sys.exit(main(sys.argv[1:]))"
    )
    root = str(Path(__file__).parents[3])
    working = tmp_path / "working"
    working.mkdir()
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", code, str(run_dir), "--port", str(port)],
            cwd=working,
            env=os.environ | {"PYTHONPATH": root},
            stderr=log,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/experiments/search",
        data=b'{"max_results": 10}',
        headers={"Content-Type": "application/json"},
    )
    try:
        names = None
        deadline = time.monotonic() + 60
        while names is None and time.monotonic() < deadline and server.poll() is None:
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    names = {e["name"] for e in json.load(answer)["experiments"]}
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        assert names is not None, (tmp_path / "log").read_text()
        assert "unused" in names
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert b"MLflow" in answer.read()
        server.terminate()
        assert server.wait(20) == 0
        with pytest.raises(ConnectionRefusedError), socket.socket() as after:
            for _ in range(100):
                after.connect(("127.0.0.1", port))
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert f"http://127.0.0.1:{port}" in (tmp_path / "log").read_text()
    assert list(working.iterdir()) == []
