"""A tiny Dreamer in lock step: the same parameters, to the bit, from every run of one seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.checkpoint.arrays import load_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from support import single_runs
from support.cli_fleet import CliFleet

EVERY = 100
COMMON = [
    "agent=dreamer",
    "env=bandit",
    "run.script=single",
    "agent.size=tiny",
    "agent.opt.lr=1e-3",
    "agent.opt.warmup=50",
    "agent.imag_last=2",
    "jax.platform=cpu",
    "jax.compute_dtype=float32",
    "batch_size=4",
    "run.envs=4",
    "run.eval_envs=2",
    "run.train_ratio=32",
    f"run.log_every_steps={EVERY}",
    f"run.report_every_steps={2 * EVERY}",
    "logger.sinks=[]",
]


def train(run: Path, *stops: int, seed: int = 0, words: tuple[str, ...] = ()) -> Path:
    """Up to each of these steps in a process of its own."""
    for steps in stops:
        with CliFleet(run, *COMMON, f"seed={seed}", f"run.steps={steps}", *words) as fleet:
            code, printed = fleet.finish(timeout_s=400.0)
        assert code == 0, printed
    return run


@pytest.mark.timeout(300)
def test_a_few_updates_are_the_same_after_a_stop(tmp_path):
    straight, stopped = train(tmp_path / "straight", 120), train(tmp_path / "stopped", 70, 120)
    assert single_runs.updates(straight) > 50
    single_runs.expect_equal(straight, stopped, EVERY)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_resumed_run_learns_by_another_learning_rate_and_keeps_the_state_of_the_optimizer(tmp_path):
    before = saved_agent(train(tmp_path, 70))
    after = saved_agent(train(tmp_path, 90, words=("agent.opt.lr=1e-30",)))
    weights = [name for name in before if name.startswith("world/")]
    assert len(weights) > 50
    assert all(np.array_equal(before[name], after[name]) for name in weights), "a rate of nothing moved the weights"
    made = int(after["updates"]) - int(before["updates"])
    assert made > 10
    assert int(after["opt/1/step"]) - int(before["opt/1/step"]) == made
    momentum = [name for name in before if name.startswith("opt/1/momentum/")]
    assert sum(not np.array_equal(before[name], after[name]) for name in momentum) > 50


def saved_agent(run: Path) -> Mapping[str, np.ndarray]:
    latest = Snapshots(run).latest()
    assert latest is not None
    return load_arrays(latest / "agent.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_five_hundred_updates_are_the_same_from_every_run_of_one_seed(tmp_path):
    first, second = train(tmp_path / "first", 560), train(tmp_path / "second", 560)
    assert single_runs.updates(first) > 500
    single_runs.expect_equal(first, second, EVERY)
    early, late = train(tmp_path / "early", 60, 560), train(tmp_path / "late", 302, 446, 560)
    for stopped in (early, late):
        single_runs.expect_equal(first, stopped, EVERY)
    other = train(tmp_path / "other", 560, seed=1)
    assert single_runs.digest(first) != single_runs.digest(other)
    losses = [row["train/opt/loss"] for row in single_runs.metrics_at(first, EVERY) if "train/opt/loss" in row]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
