"""MLflow: numbers as metrics, videos as artifacts. MLFLOW_TRACKING_URI names a server; without it, the run folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dreamfleet.metrics.sinks.libraries import require
from dreamfleet.metrics.values import Row, numbers, videos
from dreamfleet.metrics.video import write_mp4

EXPERIMENT = "dreamfleet"
ID_FILE = "mlflow.id"
METRIC_BATCH, PARAM_BATCH = 1000, 100  # the most that a server takes at once
MAX_CHARS = 500  # of a parameter's value


class MlflowSink:
    """A continued run goes on in the same MLflow run, whose id the run folder holds."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        mlflow = require("MLflow", "mlflow", "pip install 'dreamfleet[mlflow]'")
        self._entities = mlflow.entities
        own = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own)
        id_file = folder / ID_FILE
        if id_file.exists():
            self._run_id = id_file.read_text().strip()
        else:
            self._run_id = self._create(folder, settings)
            id_file.write_text(f"{self._run_id}\n")

    def write(self, row: Row) -> None:
        step, now_ms = int(row["step"]), int(1000 * float(row["time"]))
        metric = self._entities.Metric
        metrics = [metric(name, number, now_ms, step) for name, number in numbers(row).items()]
        for start in range(0, len(metrics), METRIC_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + METRIC_BATCH])
        for name, frames in videos(row).items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{name.replace('/', '-')}-{step}.mp4"
                write_mp4(path, frames)
                self._client.log_artifact(self._run_id, str(path), "videos")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)

    def _create(self, folder: Path, settings: Mapping[str, Any]) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        own = None if os.environ.get("MLFLOW_TRACKING_URI") else (folder / "mlflow-artifacts").resolve().as_uri()
        found = experiment.experiment_id if experiment else self._client.create_experiment(name, own)
        run = self._client.create_run(found, run_name=folder.resolve().name)
        param = self._entities.Param
        params = [param(key, str(value)[:MAX_CHARS]) for key, value in _flat(settings)]
        for start in range(0, len(params), PARAM_BATCH):
            self._client.log_batch(run.info.run_id, params=params[start : start + PARAM_BATCH])
        return str(run.info.run_id)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
