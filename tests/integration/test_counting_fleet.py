"""Real processes end to end: every step reaches the learner in order, none lost, none twice, none mixed up."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counting
from dreamfleet import parallel
from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots

BATCH, LENGTH, REPORT_LENGTH, CONTEXT = 4, 8, 4, 1
# Windows that may be on their way when a run ends: three requests in flight and what the limiter tolerates.
UNTRAINED_STEPS = (3 * BATCH + 4 * BATCH + BATCH) * (LENGTH + CONTEXT)


def run_counting_fleet(folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    args = {
        "logdir": str(folder),
        "steps": 3000,
        "envs": 4,
        "eval_envs": 2,
        "envs_per_worker": 2,
        "batch_size": BATCH,
        "batch_length": LENGTH,
        "report_length": REPORT_LENGTH,
        "replay_context": CONTEXT,
        "train_ratio": 3.0,
        "log_every": -1,
        "report_every": 0.5,
        **changes,
    }
    parallel.combined(
        counting.make_agent,
        partial(counting.make_replay, LENGTH + CONTEXT),
        partial(counting.make_replay, REPORT_LENGTH + CONTEXT),
        counting.make_env_train,
        counting.make_env_eval,
        partial(counting.make_stream, BATCH, LENGTH, REPORT_LENGTH, CONTEXT),
        partial(counting.make_logger, folder),
        args,
    )
    latest = Snapshots(folder).latest()
    assert latest is not None
    return load_arrays(latest / "agent.safetensors")


def steps_seen(agent: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Counts that were trained on, by environment."""
    envs, counts = agent["seen"].T
    return {int(env): np.sort(counts[envs == env]) for env in np.unique(envs)}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="two environments per worker"),
        pytest.param({"actor_batch": 64, "envs_per_worker": 1}, id="larger actor batch than environments"),
        pytest.param({"envs_per_worker": 4, "actor_batch": 3, "actor_threads": 2}, id="two actor threads"),
        pytest.param({"agent_process": False}, id="agent as a thread of the launcher"),
        pytest.param(
            dict.fromkeys(("actor_addr", "replay_addr", "logger_addr"), "tcp://127.0.0.1:{auto}"), id="encrypted tcp"
        ),
    ],
)
def test_every_step_reaches_the_learner_once_and_in_order(tmp_path: Path, changes: dict[str, Any]) -> None:
    agent = run_counting_fleet(tmp_path, **changes)
    seen = steps_seen(agent)
    assert sorted(seen) == [0, 1, 2, 3]
    assert agent["updates"] > 100
    for env, counts in seen.items():
        missing = np.setdiff1d(np.arange(counts.max()), counts)
        assert (missing > counts.max() - UNTRAINED_STEPS).all(), f"env {env} lost steps {missing}"


def test_eval_steps_are_reported_and_never_trained_on(tmp_path: Path) -> None:
    agent = run_counting_fleet(tmp_path, steps=4000)
    assert agent["eval_steps"] > 0
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert {episode["mode"] for episode in episodes} == {"train", "eval"}
    # An episode of environment i has 5 + i steps after its first and earns 1 at each.
    for episode in episodes:
        length = 5 + episode["env"]
        assert (episode["return"], episode["length"]) == (length, length)
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    names = set().union(*metrics)
    assert {"train/steps_seen", "report/evaluation", "eval/evaluation", "episode/return", "fps/env"} <= names
    assert all(row["eval/evaluation"] == 1 for row in metrics if "eval/evaluation" in row)
    assert all(row["report/evaluation"] == 0 for row in metrics if "report/evaluation" in row)
    assert [row["step"] for row in metrics] == sorted(row["step"] for row in metrics)
