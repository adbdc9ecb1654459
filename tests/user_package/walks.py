"""A walk without an end, cut off by a limit, alone and several at once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env[Any, Any]):
    """Goes where it is pushed. Never ends by itself."""

    observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
    action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = np.zeros(2, np.float32)
        return self._place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._place += action
        return self._place.copy(), float(-np.abs(self._place).sum()), False, False, {}


def truncating() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Walk(), max_episode_steps=15)


def several(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    return gym.vector.SyncVectorEnv([truncating] * num_envs)
