"""An environment that breaks again and again: the run goes on, and training never sees the cut as one episode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from support.cli_fleet import dreamfleet
from support.fleet_probe import events_of

STEPS, EVERY = 6000, 500
SMALL = ["replay.size=1e5", "batch_size=4", "batch_length=16", "report_length=8", "run.report_every=0"]
FLEET = [f"run.steps={STEPS}", "run.envs=2", "run.envs_per_worker=2", "run.eval_envs=0", "run.train_ratio=8"]


def test_a_run_goes_on_when_an_environment_raises_every_500_steps(tmp_path: Path) -> None:
    breaking = ["env=support.breaking_env:BreaksEvery", f"env.kwargs.steps={EVERY}", "env.restarts=1000"]
    command = ["agent=support.breaking_env:RecordingAgent", *breaking, *SMALL, *FLEET, "run.log_every=1"]
    result = dreamfleet("train", *command, "--run-dir", str(tmp_path), timeout_s=100)
    assert result.returncode == 0, result.stderr
    restarts = events_of(tmp_path, "env_restart")
    # Two environments share the steps and may each be short of their next error at the end.
    assert len(restarts) >= STEPS // EVERY - 2
    for env in (0, 1):
        details = [entry["detail"] for entry in restarts if entry["detail"]["env"] == env]
        assert [detail["count"] for detail in details] == list(range(1, len(details) + 1))
        assert {detail["error"] for detail in details} == {"RuntimeError: the simulator crashed"}
        assert "in step\n    raise RuntimeError" in details[0]["traceback"]
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counted = [row["env/restarts"] for row in metrics if "env/restarts" in row]
    assert counted == sorted(counted)
    assert 0 < counted[-1] <= len(restarts)
    assert len({entry["role"] for entry in restarts}) == 1


def test_no_sampled_window_crosses_the_cut_without_a_first_step(tmp_path: Path) -> None:
    breaking = ["env=support.breaking_env:BreaksEvery", "env.kwargs.steps=50", "env.restarts=1000"]
    command = ["agent=support.breaking_env:RecordingAgent", *breaking, *SMALL, *FLEET]
    result = dreamfleet("train", *command, "run.steps=3000", "--run-dir", str(tmp_path), timeout_s=100)
    assert result.returncode == 0, result.stderr
    latest = Snapshots(tmp_path).latest()
    assert latest is not None
    seen = load_arrays(latest / "agent.safetensors")
    assert seen["windows"] > 1000
    # Every life of an environment counts its steps from another number on: a jump shows where two were joined.
    assert seen["lives"] > 40
    assert seen["jumps_without_first"] == 0
    assert seen["jumps"] == 0  # nor with one: a window lies within one stream
    assert seen["episodes"] > 0  # while windows do cross the ends of episodes, where the count goes on
    assert np.all(seen["first_without_end"] == 0)
