"""A tiny Dreamer learns each built-in task through the whole fleet on the CPU, within minutes."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cli_fleet import CliFleet
from dreamfleet.envs import registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

COMMON = [
    "agent.size=tiny",
    "agent.opt.lr=1e-3",
    "agent.opt.warmup=50",
    "jax.platform=cpu",
    "jax.compute_dtype=float32",
    "report_length=8",
    "replay.size=1e5",
    "run.envs=4",
    "run.eval_envs=0",
    "run.train_ratio=32",
]
SMALL_BATCH = ["batch_size=8", "batch_length=16"]
# Rewards of 1 at most leave advantages small, so that the published weight of the entropy is too weak for them.
EXPLORE = ["agent.imag_loss.actent=1e-2"]
TASKS = {
    "bandit": [*SMALL_BATCH, "run.steps=5000"],
    "catch": [*SMALL_BATCH, *EXPLORE, "agent.imag_last=8", "run.steps=16000"],
    # Where all actions are taken equally often, the cue says nothing about the reward and nothing makes the agent keep it
    # in mind: a policy that begins with a preference of its own, and goes on trying, shows that it matters. There is one
    # reward per episode: many episodes per update, and a loss for which the reward counts.
    "memory": [
        "batch_size=16",
        "batch_length=32",
        "agent.imag_last=2",
        "agent.loss_scales.rew=10",
        "agent.policy.outscale=1",
        "agent.policy.unimix=0.05",
        "run.steps=64000",
    ],
}
EPISODES = 200  # whose mean return counts
CHECK_EVERY_S = 2.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", TASKS)
def test_reaches_nine_tenths_of_the_optimum(tmp_path: Path, task: str, seed: int) -> None:
    """The run is stopped when it has; one that reaches its last step before that has failed."""
    goal = 0.9 * registry.make_env(task, 0, seed, {}).optimum
    with CliFleet(tmp_path, f"env={task}", "agent=dreamer", f"seed={seed}", *COMMON, *TASKS[task]) as fleet:
        while mean_return(tmp_path) < goal:
            with contextlib.suppress(subprocess.TimeoutExpired):
                fleet.process.wait(CHECK_EVERY_S)
            assert fleet.process.poll() is None, f"ended with a mean return of {mean_return(tmp_path):.2f}"
        assert fleet.stop(timeout_s=60.0)[0] == 0


def mean_return(run: Path) -> float:
    path = run / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)[-EPISODES - 1 :] if path.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")][-EPISODES:]
    return float(np.mean([episode["return"] for episode in whole])) if len(whole) == EPISODES else -math.inf
