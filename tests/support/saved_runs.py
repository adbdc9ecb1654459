"""Run folders as training leaves them behind, made without training; and an agent of a user's own for them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dreamfleet.checkpoint.arrays import save_arrays
from dreamfleet.checkpoint.snapshot import Snapshots
from dreamfleet.config.agent import hyperparameters
from dreamfleet.config.load import parse_overrides, save_config
from dreamfleet.config.schema import Config
from dreamfleet.core.spaces import Space
from dreamfleet.launch.factories import make_env

TINY = ["agent.size=tiny", "jax.platform=cpu", "jax.compute_dtype=float32", "jax.cache=''", "batch_size=2"]


def make_run(folder: Path, *overrides: str, step: int = 700) -> Config:
    """A run whose agent has random weights."""
    config = parse_overrides([*TINY, "replay.size=1e5", *overrides])
    arrays = dreamer_arrays(config) if config.agent.name == "dreamer" else {"choice": np.array(1, np.int32)}
    folder.mkdir(parents=True, exist_ok=True)
    save_config(config, folder / "config.yaml")
    add_snapshot(folder, arrays, step)
    return config


def add_snapshot(folder: Path, arrays: Mapping[str, np.ndarray], step: int) -> None:
    snapshots = Snapshots(folder)
    save_arrays(snapshots.begin(step) / "agent.safetensors", arrays)
    snapshots.commit(step, {"updates": 3})


def dreamer_arrays(config: Config) -> dict[str, np.ndarray]:
    import jax

    from dreamfleet.agent.checks import check_spaces
    from dreamfleet.agent.parameters import leaf_names
    from dreamfleet.model.dreamer_model import DreamerModel
    from support.tiny_dreamer import lively

    env = make_env(config, "eval", 0)
    obs, act = check_spaces(env.obs_space, env.act_space)
    env.close()
    world = lively(lambda key: DreamerModel(key, obs, act, hyperparameters(config.agent)))
    names = [f"world/{name}" for name in leaf_names(world)]
    return {**dict(zip(names, jax.device_get(jax.tree.leaves(world)), strict=True)), "acted": np.array(5, np.int64)}


class PriorityEnv(gymnasium.Env[Any, Any]):
    """One step, whose reward is the priority of the process."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert os.getsid(0) == os.getpid()
        return 0, float(os.getpriority(os.PRIO_PROCESS, 0)), True, False, {}


class ConstantAgent:
    """Always chooses what it loaded. Counts its steps in the carry."""

    def __init__(self, obs_space: Mapping[str, Space], act_space: Mapping[str, Space], seed: int) -> None:
        assert "reward" in obs_space
        self._choice = np.int32(0)

    def init_policy(self, n: int) -> Any:
        return {"count": np.zeros(n, np.int32)}

    def policy(self, carry: Any, obs: Any, mode: str) -> Any:
        assert mode == "eval"
        assert obs["reward"].shape == obs["is_last"].shape == obs["is_first"].shape
        count = np.where(obs["is_first"], 0, carry["count"] + 1)
        return {"count": count}, {"action": np.full(len(count), self._choice, np.int32)}, {}

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        self._choice = np.int32(data["choice"])
