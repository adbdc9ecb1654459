"""Whole fleets with sinks that work, and with sinks that fail: training goes on and one line says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from support.cli_fleet import dreamfleet, environment
from support.event_files import events

STEPS = 250
SMALL = [
    "agent=random",
    "env=support.slow_parts:SlowEnv",  # two of them take no more than a hundred steps a second
    "replay.size=1e4",
    "batch_size=2",
    "batch_length=8",
    "report_length=4",
    "run.envs=2",
    "run.eval_envs=0",
    "run.stop_timeout_s=60",
    "run.train_ratio=8",
    "run.log_every=1",
    f"run.steps={STEPS}",
]

# What a user may have in place of the libraries: one is missing, one raises an error, one never answers.
LIBRARIES = {
    "tensorboardX": "raise ModuleNotFoundError(\"No module named 'tensorboardX'\", name='tensorboardX')",
    "wandb": """
class Run:
    id = "abc"

    def define_metric(self, *names, **options): ...

    def log(self, row):
        raise BrokenPipeError(32, "Broken pipe")

    def finish(self): ...


def Settings(**given): ...


def Histogram(values): ...


def Video(path, format): ...


def init(**given):
    return Run()
""",
    "mlflow": """
import threading

entities = None


def MlflowClient(tracking_uri):
    threading.Event().wait()
""",
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(run: Path, *overrides: str, libraries: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = environment()
    if libraries:
        env["PYTHONPATH"] = f"{libraries}{os.pathsep}{env['PYTHONPATH']}"
    command = [sys.executable, "-m", "dreamfleet", "train", *SMALL, *overrides, "--run-dir", str(run)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_sinks_that_fail_cost_one_line_each_and_nothing_else(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name, source in LIBRARIES.items():
        (libraries / f"{name}.py").write_text(source)
    run = tmp_path / "run"
    done = train(run, "logger.sinks=[tensorboard,wandb,mlflow]", "run.stop_timeout_s=16", libraries=libraries)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("dreamfleet:")]
    assert sorted(said) == [
        "dreamfleet: MLflow did not finish in time, what it had last may be missing: set a longer run.stop_timeout_s",
        "dreamfleet: TensorBoard is not installed, training goes on without it: pip install tensorboardX",
        "dreamfleet: W&B is left out from here on, training goes on: BrokenPipeError: [Errno 32] Broken pipe",
    ]
    warnings = [event for event in lines(run / "events.jsonl") if event["event"] == "warning"]
    assert sorted(f"dreamfleet: {event['detail']['text']}" for event in warnings) == sorted(said)
    assert {event["role"] for event in warnings} == {"logger"}
    assert lines(run / "metrics.jsonl")[-1]["step"] == STEPS
    assert list((run / "videos").glob("episode-image-*.mp4"))
    states = json.loads((run / "status.json").read_text())["roles"]["logger"]["status"]["sinks"]
    assert states["Video writing"] == "ok"


def test_tensorboard_shows_what_the_record_holds_and_every_role_is_measured(tmp_path: Path) -> None:
    done = train(tmp_path, "logger.sinks=[tensorboard]")
    assert done.returncode == 0, done.stderr
    rows = lines(tmp_path / "metrics.jsonl")
    summaries = [event for event in events(tmp_path / "tensorboard") if event.HasField("summary")]
    shown = [
        (event.step, event.wall_time, {value.tag: value.simple_value for value in event.summary.value if simple(value)})
        for event in summaries
    ]
    shown = [(step, time, numbers) for step, time, numbers in shown if numbers]
    assert len(shown) == len(rows) >= 2
    for row, (step, time, numbers) in zip(rows, shown, strict=True):
        assert (step, time) == (row.pop("step"), row.pop("time"))
        assert numbers.keys() == row.keys()
        assert all(numbers[name] == np.float32(value) for name, value in row.items())
    kinds = {(value.tag, value.WhichOneof("value")) for event in summaries for value in event.summary.value}
    assert {("episode/returns", "histo"), ("episode/lengths", "histo"), ("episode/image", "image")} <= kinds
    names = set().union(*rows)
    for role in ("agent", "replay", "logger", "env"):
        assert {f"usage/{role}/cpu_percent", f"usage/{role}/ram_gb"} <= names
    for section in ("learner/train", "actor/policy", "actor/pass_on", "replay/add_batch", "logger/tran", "env/step"):
        assert {f"timer/{section}/avg_ms", f"timer/{section}/frac"} <= names
    assert {"usage/machine/disk_free_gb", "replay/items", "limiter/balance", "fps/env"} <= names
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    families = {name.partition("/")[0] for name in names - {"step", "time"}}
    assert [family for family in families if f"`{family}/" not in documented] == []


def simple(value: Any) -> bool:
    return bool(value.WhichOneof("value") == "simple_value")


def test_an_unknown_sink_ends_the_start(tmp_path: Path) -> None:
    done = dreamfleet("train", *SMALL, "logger.sinks=[wandb,tensorbord]", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert done.stderr == (
        "dreamfleet: config key 'logger.sinks': unknown sink 'tensorbord': did you mean 'tensorboard'?\n"
    )
    assert not (tmp_path / "run").exists()
