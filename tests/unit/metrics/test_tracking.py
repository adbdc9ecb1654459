"""What the sinks for W&B and MLflow say to those libraries, which are stood in for by modules of the same names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dreamfleet.config.schema import SINKS as CONFIGURABLE
from dreamfleet.metrics.sinks.catalog import SINKS, make_sinks
from dreamfleet.metrics.sinks.isolated import NotInstalled
from dreamfleet.metrics.sinks.libraries import require
from dreamfleet.metrics.sinks.mlflow import MlflowSink
from dreamfleet.metrics.sinks.wandb import WandbSink

ROW = {
    "step": np.int64(40),
    "time": 12.5,
    "loss": 0.5,
    "returns": np.array([1.0, np.nan, 3.0]),
    "report/openloop/image": np.zeros((3, 8, 8, 3), np.uint8),
}
SETTINGS = {"seed": 3, "run": {"steps": 10}}


class FakeWandb(ModuleType):
    """Remembers runs, and what was logged of them while the files were there."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.inits: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.defined: list[Any] = []
        self.finished = 0
        self.Settings = SimpleNamespace
        self.Histogram = lambda values: ("histogram", values.tolist())
        self.Video = lambda path, **given: ("video", Path(path).read_bytes()[4:8], given)

    def init(self, **given: Any) -> Any:
        self.inits.append(given)
        return SimpleNamespace(
            id=given["id"] or "abc",
            define_metric=lambda *args, **kwargs: self.defined.append((args, kwargs)),
            log=self.logged.append,
            finish=self._finish,
        )

    def _finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_wandb_gets_numbers_distributions_and_videos(tmp_path: Path, wandb: FakeWandb) -> None:
    sink = WandbSink(tmp_path, SETTINGS)
    sink.write(ROW)
    sink.close()
    (given,) = wandb.inits
    assert (given["project"], given["name"], given["config"]) == ("dreamfleet", tmp_path.name, SETTINGS)
    assert ((("*",), {"step_metric": "step"})) in wandb.defined
    assert wandb.logged == [
        {
            "step": 40,
            "loss": 0.5,
            "returns": ("histogram", [1.0, 3.0]),
            "report/openloop/image": ("video", b"ftyp", {"format": "mp4"}),
        }
    ]
    assert wandb.finished == 1


def test_a_continued_run_goes_on_in_the_same_wandb_run(tmp_path: Path, wandb: FakeWandb) -> None:
    for _ in range(2):
        WandbSink(tmp_path, SETTINGS).close()
    assert [given["id"] for given in wandb.inits] == [None, "abc"]
    assert {given["resume"] for given in wandb.inits} == {"allow"}


class FakeMlflow(ModuleType):
    """One server that remembers experiments, runs, metrics and artifacts."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.entities = SimpleNamespace(Metric=lambda *given: given, Param=lambda *given: given)
        self.addresses: list[str] = []
        self.experiments: dict[str, Any] = {}
        self.runs: list[str] = []
        self.metrics: list[Any] = []
        self.params: list[Any] = []
        self.artifacts: list[Any] = []
        self.ended: list[str] = []
        self.MlflowClient = self.connect

    def connect(self, tracking_uri: str) -> FakeMlflow:
        self.addresses.append(tracking_uri)
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return self.experiments.get(name)

    def create_experiment(self, name: str, place: str | None) -> str:
        self.experiments[name] = SimpleNamespace(experiment_id=f"id of {name}", place=place)
        return f"id of {name}"

    def create_run(self, experiment: str, run_name: str) -> Any:
        assert experiment == "id of dreamfleet"
        self.runs.append(run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run {len(self.runs)}"))

    def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.metrics += [(run, *metric) for metric in metrics]
        self.params += params

    def log_artifact(self, run: str, path: str, folder: str) -> None:
        self.artifacts.append((run, Path(path).name, Path(path).read_bytes()[4:8], folder))

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)


@pytest.fixture
def mlflow(monkeypatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return fake


def test_mlflow_gets_numbers_parameters_and_videos(tmp_path: Path, mlflow: FakeMlflow) -> None:
    many = {f"key{number}": number for number in range(250)}
    sink = MlflowSink(tmp_path, {**SETTINGS, **many})
    sink.write({**ROW, **{f"name{number}": 1.0 for number in range(2500)}})
    sink.close()
    assert mlflow.addresses == [f"sqlite:///{tmp_path / 'mlflow.db'}"]
    assert mlflow.experiments["dreamfleet"].place == (tmp_path / "mlflow-artifacts").as_uri()
    assert mlflow.runs == [tmp_path.name]
    assert mlflow.params[:2] == [("seed", "3"), ("run.steps", "10")]
    assert len(mlflow.params) == 252
    assert mlflow.metrics[0] == ("run 1", "loss", 0.5, 12500, 40)
    assert len(mlflow.metrics) == 2501
    assert mlflow.artifacts == [("run 1", "report-openloop-image-40.mp4", b"ftyp", "videos")]
    assert mlflow.ended == ["run 1"]


def test_a_continued_run_goes_on_in_the_same_mlflow_run(tmp_path: Path, mlflow: FakeMlflow) -> None:
    for _ in range(2):
        MlflowSink(tmp_path, SETTINGS).write({"step": 1, "time": 0.0, "x": 1.0})
    assert [metric[0] for metric in mlflow.metrics] == ["run 1", "run 1"]


def test_mlflow_takes_the_server_that_its_own_variable_names(tmp_path: Path, mlflow: FakeMlflow, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    MlflowSink(tmp_path, {})
    assert mlflow.addresses == ["http://tracking:5000"]
    assert mlflow.experiments["dreamfleet"].place is None  # where that server keeps them


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError):
        require("W&B", "no_such_module.inner", "pip install it")
    with pytest.raises(NotInstalled, match="W&B is not installed, training goes on without it: pip install it"):
        require("W&B", "no_such_module", "pip install it")


def test_every_sink_of_the_configuration_can_be_made(tmp_path: Path, wandb: FakeWandb, mlflow: FakeMlflow) -> None:
    assert {"jsonl", *SINKS} == set(CONFIGURABLE)
    told: list[str] = []
    sinks = make_sinks(CONFIGURABLE, tmp_path, SETTINGS, 5, told.append)
    assert [sink.label for sink in sinks] == ["TensorBoard", "W&B", "MLflow", "Video writing"]
    for sink in sinks:
        sink.write(ROW)
        sink.end()
    for sink in sinks:
        sink.wait_ended(30.0)
    assert told == []
    assert {path.name for path in tmp_path.iterdir()} == {"tensorboard", "videos", "wandb.id", "mlflow.id"}
    assert make_sinks(["jsonl"], tmp_path, {}, 0, told.append) == []
