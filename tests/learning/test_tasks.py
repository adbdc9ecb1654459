"""A tiny Dreamer learns each built-in task through the whole fleet on the CPU, within minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_fleet import CliFleet, dreamfleet
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
# Rewards of 1 at most are small against other losses. A policy that always tries some actions at random finds what it
# gave up too early.
EXPLORE = ["agent.loss_scales.rew=10", "agent.policy.unimix=0.05"]
TASKS = {
    "bandit": [*SMALL_BATCH, "run.steps=5000"],
    "catch": [*SMALL_BATCH, *EXPLORE, "agent.imag_last=8", "agent.imag_loss.actent=1e-2", "run.steps=12000"],
    # Where all actions are taken equally often, the cue says nothing about the reward, and nothing makes the agent keep
    # it in mind: a policy that begins with a preference of its own shows that it matters. Latents that nothing has to
    # be written into are noise that hides the cue: there are few. One reward per episode: many episodes per update.
    "memory": [
        *EXPLORE,
        "batch_size=16",
        "batch_length=32",
        "agent.opt.lr=2e-3",
        "agent.dyn.stoch=8",
        "agent.imag_last=2",
        "agent.policy.outscale=1",
        "run.steps=48000",
    ],
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", TASKS)
def test_reaches_nine_tenths_of_the_optimum(tmp_path: Path, task: str, seed: int) -> None:
    """The saved policy does, with its best actions; the run ends as soon as 200 episodes with random ones did."""
    goal = 0.9 * registry.make_env(task, 0, seed, {}).optimum
    ends = [f"run.goal={goal}", "run.goal_episodes=200"]
    with CliFleet(tmp_path, f"env={task}", "agent=dreamer", f"seed={seed}", *COMMON, *TASKS[task], *ends) as fleet:
        code, printed = fleet.finish(timeout_s=1000.0)
    assert code == 0, printed
    played = dreamfleet("eval", str(tmp_path), "--episodes", "200", "--deterministic", "--json", timeout_s=180.0)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["mean"] >= goal, printed
