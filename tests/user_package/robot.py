"""A robot with a camera, a few sensors and a gear: observations of several kinds, actions in unequal dimensions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

GEARS = 3


class Robot(gym.Env[Any, Any]):
    """Falls over after `length` steps, for good."""

    observation_space = gym.spaces.Dict(
        {
            "camera": gym.spaces.Box(0, 255, (48, 48, 3), np.uint8),
            "joints": gym.spaces.Box(-np.inf, np.inf, (4,), np.float64),
            "gear": gym.spaces.Discrete(GEARS),
        }
    )

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.action_space: Any = gym.spaces.Discrete(5)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._step += 1
        return self._look(), 1.0, self._step >= self.length, False, {"energy": 2.0 * self._step}

    def _look(self) -> dict[str, Any]:
        camera = self.np_random.integers(0, 256, (48, 48, 3), np.uint8)
        return {"camera": camera, "joints": self.np_random.normal(size=4), "gear": self._step % GEARS}


class Manipulator(Robot):
    """Three switches, with two, five and three positions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.MultiDiscrete([2, 5, 3])


def make_robot(length: int, joints: str = "free", seed: int = 0) -> gym.Env[Any, Any]:
    """`length` and `joints` come from the command line, `seed` from the fleet."""
    if joints != "stiff":
        raise ValueError(f"these joints are {joints}")
    return Robot(length + 0 * seed)
