"""Real processes end to end: every step reaches the learner in order, none lost, none twice, none mixed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import counting


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
    agent = counting.run_fleet(tmp_path, **changes)
    assert agent["updates"] > 100
    counting.expect_complete(agent)


@pytest.mark.parametrize("apart", [True, False])
def test_eval_steps_are_reported_and_never_trained_on(tmp_path: Path, apart: bool) -> None:
    agent = counting.run_fleet(tmp_path, steps=4000, eval_apart=apart)
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
