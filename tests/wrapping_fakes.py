"""Wrappers as users write them; named in `env.wrappers` as `wrapping_fakes:NAME`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SAYS = spaces.Dict({"mission": spaces.Text(20), "x": spaces.Box(0, 1, (2,), np.float32)})


class Scale(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Multiplies the observation, a Box, by a factor, and then adds to it."""

    def __init__(self, env: Any, by: float, plus: float = 0.0) -> None:
        super().__init__(env)
        box = env.observation_space
        self.by, self.plus = by, plus
        self.observation_space = spaces.Box(box.low * by + plus, box.high * by + plus, dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return np.float32(observation * self.by + self.plus)


class Quiet(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Leaves the mission out."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({key: env.observation_space[key] for key in ("x",)})

    def observation(self, observation: Any) -> Any:
        return {"x": observation["x"]}


def fails(env: Any) -> Any:
    raise RuntimeError("no such\nlevel")


def forgets(env: Any) -> None:
    """Returns nothing."""
