"""Write runs to MLflow: to `mlflow.db` in the current folder, or to the store that MLFLOW_TRACKING_URI names."""

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherefed.files import write_bytes
from spherefed.tracking.values import Values, parameters

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

IDENTITY = "mlflow.json"
"""File in a run directory: the store and the run to go on with after a resume."""
LOCAL_STORE = "sqlite:///mlflow.db"
BATCH = 100
"""MLflow takes at most this many parameters at once."""
LONGEST_PARAMETER = 500
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""MLflow reports its use to its makers unless told otherwise, and waits long for a store that does not answer."""


class MlflowWriter:
    """One run in MLflow; a resumed run goes on with the one that it began."""

    def __init__(self, run: Path, name: str) -> None:
        self._client, self._uri = connect()
        self._run, self._name = run, name
        self._id = ""
        self._last_step = -1

    def start(self, experiment: Mapping[str, Any]) -> None:
        self._id = self._earlier_run() or ""
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
            self._last_step = max((m.step for m in self._client.get_metric_history(self._id, "loss")), default=-1)
            return
        self._id = new_run(self._client, str(experiment["name"]), self._name, self._run)
        identity = {"tracking_uri": self._uri, "run_id": self._id}
        write_bytes(self._run / IDENTITY, (json.dumps(identity, indent=2) + "\n").encode())
        _log_parameters(self._client, self._id, parameters(experiment))
        self._client.log_artifact(self._id, str(self._run / "experiment.json"))

    def log(self, values: Values, step: int) -> None:
        from mlflow.entities import Metric

        if step <= self._last_step:
            return
        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, values: Values, table: str, run: Path) -> None:
        self._last_step = -1
        self.log(values, int(values.get("final/rounds", 0)))
        self._client.log_artifact(self._id, str(run / "result.json"))
        self._client.log_text(self._id, table, "table.md")

    def close(self, *, finished: bool) -> None:
        if self._id:
            self._client.set_terminated(self._id, status="FINISHED" if finished else "KILLED")

    def _earlier_run(self) -> str | None:
        path = self._run / IDENTITY
        if not path.exists():
            return None
        identity = json.loads(path.read_text(encoding="utf-8"))
        return str(identity["run_id"]) if identity["tracking_uri"] == self._uri else None


def connect() -> "tuple[MlflowClient, str]":
    """A client of the store, and the store's address."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI") or LOCAL_STORE
    return MlflowClient(tracking_uri=uri), uri


def new_run(client: "MlflowClient", experiment: str, name: str, path: Path) -> str:
    """The identity of a new run of this experiment, which is made if there is none."""
    found = client.get_experiment_by_name(experiment)
    identity = client.create_experiment(experiment) if found is None else found.experiment_id
    tags = {"spherefed.path": str(path.resolve())}
    return str(client.create_run(identity, run_name=name, tags=tags).info.run_id)


def write_table(folder: Path, table: str) -> None:
    """The table of a comparison, as a run of its own with one artefact."""
    client, _ = connect()
    first = json.loads(next(folder.glob("*/*/experiment.json")).read_text(encoding="utf-8"))
    identity = new_run(client, str(first["name"]), f"{folder.name}, comparison", folder)
    client.log_text(identity, table, "table.md")
    client.set_terminated(identity)


def _log_parameters(client: "MlflowClient", identity: str, values: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    listed = [Param(_allowed(name), value[:LONGEST_PARAMETER]) for name, value in values.items()]
    for start in range(0, len(listed), BATCH):
        client.log_batch(identity, params=listed[start : start + BATCH])


def _allowed(name: str) -> str:
    """MLflow's names are letters, digits, spaces and `_-./`."""
    return re.sub(r"[^\w\-./ ]", "_", name)
