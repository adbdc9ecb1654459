"""Environments with the `dm_env` interface as Gymnasium ones, which `envs/adapter.py` takes from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class DmEnv(gymnasium.Env[Any, Any]):
    """Acts `repeat` times per step and sums the rewards.

    The end of an episode is a termination where the discount is 0 and a truncation elsewhere. `image`, of shape
    `image_shape`, is called once a step for a picture of the state. The environment was given its seed when it was
    made, so the one in `reset` is ignored.
    """

    def __init__(
        self,
        env: Any,
        *,
        repeat: int = 1,
        vectors: bool = True,
        image: Callable[[], np.ndarray] | None = None,
        image_shape: tuple[int, ...] = (),
    ) -> None:
        self._env = env
        self._repeat = repeat
        self._vectors = vectors
        self._image = image
        self.action_space = from_spec(env.action_spec())
        spec = env.observation_spec()
        if not isinstance(spec, Mapping):
            self.observation_space = from_spec(spec)
            return
        found = {key: from_spec(each) for key, each in spec.items()} if vectors else {}
        if image is not None:
            found["image"] = spaces.Box(0, 255, image_shape, np.uint8)
        self.observation_space = spaces.Dict(found)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(self._env.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(self._repeat):
            time_step = self._env.step(action)
            reward += float(time_step.reward or 0.0)
            if time_step.last():
                break
        terminal = bool(time_step.last() and time_step.discount == 0)
        return self._observe(time_step), reward, terminal, bool(time_step.last() and not terminal), {}

    def close(self) -> None:
        self._env.close()

    def _observe(self, time_step: Any) -> Any:
        if not isinstance(time_step.observation, Mapping):
            return np.asarray(time_step.observation)
        found = {key: np.asarray(value) for key, value in time_step.observation.items()} if self._vectors else {}
        if self._image is not None:
            found["image"] = self._image()
        return found


def from_spec(spec: Any) -> spaces.Space[Any]:
    """The Gymnasium space of a `dm_env` array specification."""
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(spec.shape)
    whole: Any = np.iinfo(dtype) if dtype.kind in "iu" else None
    low = getattr(spec, "minimum", whole.min if whole else -np.inf)
    high = getattr(spec, "maximum", whole.max if whole else np.inf)
    # `Box` takes a number or an array of the full shape.
    low, high = (np.broadcast_to(np.asarray(bound, dtype), spec.shape) for bound in (low, high))
    return spaces.Box(low, high, spec.shape, dtype.type)
