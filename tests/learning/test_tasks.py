"""A tiny Dreamer learns each built-in task through the whole fleet on the CPU, within minutes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli_fleet import dreamfleet
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
    "catch": [*SMALL_BATCH, *EXPLORE, "agent.imag_last=8", "run.steps=12000"],
    # One reward per episode, which the cue alone says nothing about while all actions are tried equally: many episodes
    # per update, a loss for which the reward counts, and a policy that settles but never stops trying.
    "memory": [
        "batch_size=16",
        "batch_length=32",
        "agent.imag_last=2",
        "agent.loss_scales.rew=10",
        "agent.policy.unimix=0.05",
        "run.steps=48000",
    ],
}
LAST_EPISODES = 200


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("task", TASKS)
def test_reaches_nine_tenths_of_the_optimum(tmp_path: Path, task: str, seed: int) -> None:
    run = tmp_path / "run"
    arguments = [f"env={task}", f"seed={seed}", *COMMON, *TASKS[task], "--run-dir", str(run)]
    ended = dreamfleet("train", *arguments, timeout_s=1100.0)
    assert ended.returncode == 0, ended.stderr
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    reached = float(np.mean([episode["return"] for episode in episodes[-LAST_EPISODES:]]))
    optimum = registry.make_env(task, 0, seed, {}).optimum
    assert reached >= 0.9 * optimum, f"{reached:.2f} of {optimum:.2f} after {len(episodes)} episodes"
