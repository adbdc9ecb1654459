"""A tiny Dreamer learns each built-in task through the whole fleet on the CPU, within minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dreamfleet.config.load import parse_overrides
from dreamfleet.envs import registry
from learning import CATCH, COMMON, TASKS, Task
from support.cli_fleet import CliFleet, dreamfleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FULL_CATCH = Task(["env=catch", *COMMON, *CATCH], 12000, -0.6, 1.0)  # ten rows, five columns


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", [TASKS["bandit"], FULL_CATCH, TASKS["memory"]], ids=["bandit", "catch", "memory"])
def test_reaches_nine_tenths_of_the_optimum(tmp_path: Path, task: Task, seed: int) -> None:
    """The saved policy does, with its best actions; the run ends as soon as 200 episodes with random ones did."""
    env = parse_overrides(task.words).env.name
    goal = 0.9 * registry.make_env(env, 0, seed, {}).optimum
    ends = [f"run.steps={task.steps}", f"run.goal={goal}", "run.goal_episodes=200"]
    with CliFleet(tmp_path, *task.words, f"seed={seed}", *ends) as fleet:
        code, printed = fleet.finish(timeout_s=1000.0)
    assert code == 0, printed
    played = dreamfleet("eval", str(tmp_path), "--episodes", "200", "--deterministic", "--json", timeout_s=180.0)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["mean"] >= goal, printed
