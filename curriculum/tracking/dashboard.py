"""`python -m curriculum dashboard [RUN]`: MLflow's UI on a run's store.

Without RUN the store is that of `MLFLOW_TRACKING_URI` where it is set, else of the newest run
under `runs/`. Other `MLFLOW_*` variables reach MLflow unchanged.
"""

import argparse
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from curriculum.errors import RunError, UserError
from curriculum.tracking.mlflow_store import masked, sqlite_path

HOST = "127.0.0.1"
PORT = 5000


def main(argv: Sequence[str]) -> int:
    """Serve until interrupted. The exit code is that of MLflow, 0 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m curriculum dashboard", description="open MLflow's UI on a run's store"
    )
    parser.add_argument("run", nargs="?", help="a run directory or a sqlite file")
    parser.add_argument("--port", type=int, default=int(os.environ.get("MLFLOW_PORT", PORT)))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs lie")
    options = parser.parse_args(argv)
    uri = find_store(options.run, options.runs)
    if importlib.util.find_spec("mlflow") is None:
        raise RunError("dashboard: mlflow is not installed; pip install mlflow")
    _require_free(options.port)
    print(f"MLflow on {masked(uri)}: http://{HOST}:{options.port} (Ctrl-C ends)", file=sys.stderr)
    return serve(uri, options.port)


def find_store(run: str | None, runs: Path) -> str:
    """The URI of the store to show. `UserError` if there is none."""
    if run is not None:
        return _store_of(Path(run))
    if named := os.environ.get("MLFLOW_TRACKING_URI"):
        return _servable(named, "MLFLOW_TRACKING_URI")
    stores = sorted(runs.rglob("mlflow.db"), key=lambda path: path.stat().st_mtime)
    if not stores:
        raise UserError(
            f"dashboard: no mlflow.db under {runs}/; name a run directory, or start a run with "
            "tracking.enabled=true"
        )
    return f"sqlite:///{stores[-1].absolute()}"


def serve(uri: str, port: int) -> int:
    """Run MLflow's server on a store as a child process; SIGTERM and Ctrl-C end both."""
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    if (path := sqlite_path(uri)) is not None:
        # Without it MLflow would make `mlruns` in the working directory.
        command += ["--default-artifact-root", str(path.parent / "mlartifacts")]
    environment = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Viewing needs no job runner: five more processes.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        **os.environ,
    }
    child = subprocess.Popen(command, env=environment)
    previous = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.wait()
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0 if code in (0, -signal.SIGTERM) else 1


def _store_of(run: Path) -> str:
    if run.is_file():
        return f"sqlite:///{run.absolute()}"
    database = run / "mlflow.db"
    if database.is_file():
        return f"sqlite:///{database.absolute()}"
    config = run / "config.yaml"
    if config.is_file():
        tracking = (yaml.safe_load(config.read_text()) or {}).get("tracking") or {}
        if uri := tracking.get("uri"):
            return _servable(uri, f"tracking.uri of {config}")
    raise UserError(
        f"dashboard: {run}: no mlflow.db and no tracking.uri in its config.yaml; name a run "
        "directory, e.g. runs/PLAN/PROFILE"
    )


def _servable(uri: str, source: str) -> str:
    """`uri`, unless it is a server, which shows its own UI."""
    if uri.startswith(("http://", "https://")):
        raise UserError(f"dashboard: {source}={masked(uri)} is a server; open it in a browser")
    return uri


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"dashboard: port {port} on {HOST} cannot be used ({error}); choose another with "
                "--port"
            ) from None
