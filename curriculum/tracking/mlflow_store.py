"""The MLflow store: opened safely by several processes, and values in the form that it takes."""

import hashlib
import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VALUE_LIMIT = 500
NAME_LIMIT = 250

_SECRET = re.compile(r"(^|_)(password|passwd|secret|token|api_key|access_key|credentials?)$", re.I)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)


def open_store(uri: str, experiment: str) -> tuple[Any, str]:
    """An `MlflowClient` for the store and the id of the experiment, created if it is new.

    A new sqlite store is made under a file lock: MLflow's own migration fails when several
    processes meet on a fresh file. Artifacts of a sqlite store lie beside it, in `mlartifacts`.
    """
    with _sole(uri):
        client = _client(uri)
        found = client.get_experiment_by_name(experiment)
        if found is not None:
            return client, found.experiment_id
        path = sqlite_path(uri)
        location = None if path is None else str(path.parent / "mlartifacts")
        try:
            return client, client.create_experiment(experiment, artifact_location=location)
        except Exception:
            # On a shared server another process may have been first.
            found = client.get_experiment_by_name(experiment)
            if found is None:
                raise
            return client, found.experiment_id


def sqlite_path(uri: str) -> Path | None:
    """The file of a sqlite URI, or None for another store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(uri.removeprefix("sqlite:///").split("?")[0]).absolute()


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names and text values for MLflow's parameters.

    Lists stay one value, as JSON. A long value is cut, and the cut shows its length and digest, so
    that two different values never look equal. Secrets are masked.
    """
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        elif _SECRET.search(str(key)) and value is not None:
            flat[clean_name(name)] = "***"
        else:
            flat[clean_name(name)] = _shortened(masked(_text(value)))
    return flat


def clean_name(name: str) -> str:
    """`name` with what MLflow refuses in names replaced by `_`."""
    return _NOT_IN_NAMES.sub("_", name)[:NAME_LIMIT]


def masked(text: str) -> str:
    """`text` without the credentials of any URL in it."""
    return _CREDENTIALS.sub("***@", text)


def fingerprint(*values: Any) -> str:
    """Hex digest of plain values."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    if len(text) <= VALUE_LIMIT:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    mark = f"... [{len(text)} characters, sha256 {digest}, whole in config.yaml]"
    return text[: VALUE_LIMIT - len(mark)] + mark


def _client(uri: str) -> Any:
    """Import MLflow, quietly, and connect."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


@contextmanager
def _sole(uri: str) -> Iterator[None]:
    """One process at a time for a sqlite store, and a quick, clear error if it cannot be opened."""
    path = sqlite_path(uri)
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("ab") as handle:
        _lock(handle.fileno())
        # Where sqlite cannot open the path, MLflow itself would retry for minutes.
        sqlite3.connect(path).close()
        yield


def _lock(descriptor: int) -> None:
    """Wait for the lock, which ends with the file's closing or the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no flock: there, the first of several processes must be alone
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
