"""What environments of our own interface are wrapped in, so that every agent can take them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.errors import SpaceMismatch
from dreamfleet.core.interfaces import Env
from dreamfleet.core.spaces import LOG_PREFIX, REWARD, Space, is_image
from dreamfleet.envs.action_scale import ActionScale
from dreamfleet.envs.clip import advice
from dreamfleet.envs.images import make_resize

INT32 = np.iinfo(np.int32)
KEPT = (np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int32), np.dtype(bool))


class EnvWrapper(ABC):
    """Holds the environment below and its spaces, which a wrapper may replace."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.name: str = getattr(env, "name", None) or type(env).__name__
        self.readings: Mapping[str, Any] = getattr(env, "readings", {})  # of a Gymnasium environment below
        self.obs_space: Mapping[str, Space] = dict(env.obs_space)
        self.act_space: Mapping[str, Space] = dict(env.act_space)

    @abstractmethod
    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]: ...

    def close(self) -> None:
        self._env.close()


class ActionRepeat(EnvWrapper):
    """Takes every action `repeat` times, or until the episode ends, and shows the last observation.

    Rewards are summed, and so is what comes under `log/`: the episode's totals are the same as without repeats.
    """

    def __init__(self, env: Env, repeat: int) -> None:
        super().__init__(env)
        self._repeat = repeat
        opened = {key: Space(space.dtype, space.shape) for key, space in _sums(env.obs_space).items()}
        self.obs_space = {**self.obs_space, **opened}  # a sum may leave the bounds of what it sums

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        obs = self._env.step(action)
        if obs["is_first"] or obs["is_last"]:
            return obs
        sums = _sums(obs)
        again = {**action, "reset": np.False_}
        for _ in range(self._repeat - 1):
            obs = self._env.step(again)
            for key, value in _sums(obs).items():
                sums[key] = sums[key] + value if key in sums else value
            if obs["is_last"]:
                break
        return {**obs, **sums}


def _sums(obs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in obs.items() if key == REWARD or key.startswith(LOG_PREFIX)}


class TimeLimit(EnvWrapper):
    """Cuts episodes after `steps` steps. The cut is a truncation: what would have come next still counts."""

    def __init__(self, env: Env, steps: int) -> None:
        super().__init__(env)
        self._limit = steps
        self._steps = 0
        self._cut = False

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._cut:  # the environment below does not know that its episode has ended
            action = {**action, "reset": np.True_}
        obs = self._env.step(action)
        self._steps = 0 if obs["is_first"] else self._steps + 1
        self._cut = self._steps >= self._limit
        return {**obs, "is_last": np.True_} if self._cut else obs


class NormalizeActions(EnvWrapper):
    """Lets the agent act in [-1, 1] where the environment has other bounds, and clips what is beyond them."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._scales = {
            key: ActionScale(space.low, space.high, space.dtype, space.shape)
            for key, space in env.act_space.items()
            if space.dtype.kind == "f"
        }
        self.act_space = {**self.act_space, **{key: scale.space for key, scale in self._scales.items()}}

    @staticmethod
    def needed(env: Env) -> bool:
        return any(space.dtype.kind == "f" for space in env.act_space.values())

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        scaled = {key: scale(action[key]) for key, scale in self._scales.items() if key in action}
        return self._env.step({**action, **scaled})


class UnifyDtypes(EnvWrapper):
    """Floats become float32, integers other than bytes int32."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._declared = {key: space for key, space in env.obs_space.items() if space.dtype not in KEPT}
        self._act_dtypes = {key: space.dtype for key, space in env.act_space.items() if space.dtype not in KEPT}
        self.obs_space = {key: unified(space) for key, space in env.obs_space.items()}
        self.act_space = {key: unified(space) for key, space in env.act_space.items()}

    @staticmethod
    def needed(env: Env) -> bool:
        return any(space.dtype not in KEPT for space in [*env.obs_space.values(), *env.act_space.values()])

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        dtypes = self._act_dtypes.items()
        changed = {key: np.asarray(action[key]).astype(dtype) for key, dtype in dtypes if key in action}
        obs = dict(self._env.step({**action, **changed}))
        for key, space in self._declared.items():
            if key in obs:  # what is missing is for the space checks to name
                obs[key] = self._convert(key, obs[key], space)
        return obs

    def _convert(self, key: str, value: Any, space: Space) -> np.ndarray:
        violation = space.violation(value)
        if violation:  # named here, for a changed dtype could hide it
            raise SpaceMismatch(
                f"{self.name}: observation {key!r} has {violation}: return what obs_space declares, {space}"
                f"{advice(violation)}"
            )
        result = np.asarray(value).astype(self.obs_space[key].dtype)
        if space.discrete and (result != value).any():
            raise SpaceMismatch(
                f"{self.name}: observation {key!r} has a value that int32 cannot hold: declare it as float32"
            )
        return result


def unified(space: Space) -> Space:
    if space.dtype in KEPT:
        return space
    if not space.discrete:
        with np.errstate(over="ignore"):  # a bound that float32 cannot hold is none
            return Space(np.float32, space.shape, space.low.astype(np.float32), space.high.astype(np.float32))
    low, high = np.clip(space.low, INT32.min, INT32.max), np.clip(space.high, INT32.min + 1, INT32.max + 1)
    return Space(np.int32, space.shape, low, high)


class ResizeImages(EnvWrapper):
    """Brings every image to one size."""

    def __init__(self, env: Env, size: tuple[int, int], method: str | None) -> None:
        super().__init__(env)
        self._resize: Callable[[np.ndarray], np.ndarray] = make_resize(size, method)
        self._images = image_spaces(env)
        resized = {key: Space(np.uint8, (*size, space.shape[2])) for key, space in self._images.items()}
        self.obs_space = {**self.obs_space, **resized}

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        obs = dict(self._env.step(action))
        for key, space in self._images.items():
            if key not in obs:  # which is for the space checks to name
                continue
            violation = space.violation(obs[key])
            if violation:
                raise SpaceMismatch(
                    f"{self.name}: observation {key!r} has {violation}: return what obs_space declares, {space}"
                )
            obs[key] = self._resize(np.asarray(obs[key]))
        return obs


def image_spaces(env: Env) -> dict[str, Space]:
    """Images of our own interface have height, width and channels."""
    spaces = env.obs_space.items()
    return {key: space for key, space in spaces if is_image(space)}
