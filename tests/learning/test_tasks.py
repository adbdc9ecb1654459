"""A tiny Dreamer learns each built-in task through the whole fleet on the CPU, within minutes."""

from __future__ import annotations

from pathlib import Path

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
    # Where all actions are taken equally often, the cue says nothing about the reward, and nothing makes the agent keep
    # it in mind: a policy that begins with a preference of its own, and goes on trying, shows that it matters. There is
    # one reward per episode: many episodes per update, and a loss for which the reward counts.
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", TASKS)
def test_reaches_nine_tenths_of_the_optimum(tmp_path: Path, task: str, seed: int) -> None:
    """A run that ends at its last step has not reached its goal."""
    goal = [f"run.goal={0.9 * registry.make_env(task, 0, seed, {}).optimum}", "run.goal_episodes=200"]
    with CliFleet(tmp_path, f"env={task}", "agent=dreamer", f"seed={seed}", *COMMON, *TASKS[task], *goal) as fleet:
        code, printed = fleet.finish(timeout_s=1100.0)
    assert code == 0, printed
    assert "reached: the mean return of 200 episodes" in fleet.status()["reason"], printed
