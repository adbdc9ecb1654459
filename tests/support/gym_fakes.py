"""Gymnasium environments that tests look into: they remember what they were given and what they returned."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dreamfleet.envs.options import EnvOptions

NO_OPTIONS = EnvOptions()
BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(4, start=-2),
    "multidiscrete": spaces.MultiDiscrete([2, 5, 3]),
    "multidiscrete_start": spaces.MultiDiscrete([2, 5], start=[-1, 10]),
    "multidiscrete_rank2": spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32),
    "multibinary": spaces.MultiBinary(4),
    "multibinary_rank2": spaces.MultiBinary([2, 3]),
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "box_scalar": spaces.Box(0, 5, (), np.float32),
    "box_float64": spaces.Box(np.array([-3.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64),
    "box_float16": spaces.Box(-2, 2, (2,), np.float16),
    "box_matrix": spaces.Box(-5, 5, (2, 3), np.float32),
    "box_unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "box_half": spaces.Box(np.array([0.0, -np.inf, -1.0]), np.array([np.inf, 1.0, 3.0]), dtype=np.float64),
    "box_integers": spaces.Box(np.array([-2, 5]), np.array([3, 9]), dtype=np.int64),
    "box_bytes": spaces.Box(0, 255, (4,), np.uint8),
    "box_bool": spaces.Box(0, 1, (3,), np.bool_),
    "dict": spaces.Dict({"turn": spaces.Box(-2, 2, (2,), np.float32), "fire": spaces.Discrete(3, start=1)}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3))),
    "nested": spaces.Dict(
        {
            "arm": spaces.Tuple((spaces.Box(0, 4, (2,), np.float64), spaces.Dict({"grip": spaces.Discrete(2)}))),
            "leg": spaces.Dict({"left": spaces.Dict({"knee": spaces.MultiDiscrete([2, 7])})}),
        }
    ),
}


class Missions(spaces.Space[str]):
    """A space of texts that is none of Gymnasium's, as Minigrid has."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return str(self.np_random.choice(["get the red ball", "get the blue key", ""]))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Missions)

    def __hash__(self) -> int:
        return hash(Missions)


class Recorder(gymnasium.Env[Any, Any]):
    """Observations are drawn from their space. Episodes take `lengths` steps in turn, the last of which terminates;
    with `truncates`, every second episode is truncated instead."""

    def __init__(
        self,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        lengths: tuple[int, ...] = (5,),
        truncates: bool = False,
        infos: bool = False,
    ) -> None:
        # Copies, for a space holds the random state that its samples come from.
        self.observation_space = copy.deepcopy(BOX if observation_space is None else observation_space)
        self.action_space = copy.deepcopy(CHOICE if action_space is None else action_space)
        self.lengths = lengths
        self.truncates = truncates
        self.infos = infos
        self.episode = -1
        self.count = 0
        self.seeds: list[int | None] = []
        self.received: list[Any] = []
        self.returned: list[Any] = []
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.seeds.append(seed)
        self.episode += 1
        self.count = 0
        return self._draw(), {"episode_number": self.episode} if self.infos else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received.append(action)
        self.count += 1
        ends = self.count >= self.lengths[self.episode % len(self.lengths)]
        truncated = ends and self.truncates and self.episode % 2 == 1
        reward = float(self.np_random.standard_normal())
        info: dict[str, Any] = {}
        if self.infos:
            info = {"count": self.count, "nested": {"flag": ends}, "text": "no number"}
            if self.count % 2:
                info["odd"] = 0.5
        return self._draw(), reward, ends and not truncated, truncated, info

    def close(self) -> None:
        self.closed = True

    def _draw(self) -> Any:
        self.returned.append(self.observation_space.sample())
        return self.returned[-1]


def action_of(act_space: Mapping[str, Any], rng: np.random.Generator, reset: bool = False) -> dict[str, Any]:
    action = {key: space.sample(rng) for key, space in act_space.items() if key != "reset"}
    return {**action, "reset": np.bool_(reset)}


def fail(**kwargs: Any) -> Any:
    raise TypeError("the simulator is broken")


class Echo(Recorder):
    """Shows the action that it was given; at the start of an episode, one that it could have been given."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__(spaces.Dict({"given": action_space}), action_space, lengths=(10**6,))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"given": action}, *super().step(action)[1:]
