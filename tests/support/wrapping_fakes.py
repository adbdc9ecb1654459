"""Wrappers as users write them; named in `env.wrappers` as `support.wrapping_fakes:NAME`."""

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


class Crossing(gymnasium.Env[Any, Any]):
    """Shows what no agent takes as it is, leaves its bounds and pays twice. Episodes take six steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "mission": spaces.Text(40),
                "cars": spaces.Sequence(spaces.Box(-1.0, 1.0, (2,), np.float32)),
                "graph": spaces.Graph(spaces.Discrete(2), None),
                "x": spaces.Box(-1.0, 1.0, (3,), np.float32),
            }
        )
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self._observe(), np.array([1.0, 5.0]), False, self._steps == 6, {}

    def _observe(self) -> Any:
        cars = self.np_random.uniform(-1, 1, (self._steps % 4, 2)).astype(np.float32)
        mission = str(self.np_random.choice(["get the red ball", "open a door", ""]))
        x = np.float32([1.0000001, -7, 0.5])
        return {"mission": mission, "cars": tuple(cars), "graph": None, "x": x}


CROSSING = [
    "env=support.wrapping_fakes:Crossing", "env.drop=[graph]", "env.text={mission: 16}", "env.pad={cars: 2}",
    "env.clip=true", "env.reward_weights=[1, 0.5]",
]  # fmt: skip


def fails(env: Any) -> Any:
    raise RuntimeError("no such\nlevel")


def forgets(env: Any) -> None:
    """Returns nothing."""
