"""One Gymnasium environment as an `Env` of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.errors import EnvError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.gym.actions import Actions
from dreamfleet.envs.gym.observations import Observations
from dreamfleet.envs.gym.value_types import expect_info, flag, no_reward
from dreamfleet.envs.options import EnvOptions
from dreamfleet.envs.reward_parts import several_parts

FLAG_SPACES = {"reward": Space(np.float32), "is_first": Space(bool), "is_last": Space(bool), "is_terminal": Space(bool)}
NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
TRUE, FALSE, NO_REWARD = np.True_, np.False_, np.float32(0)
FLAGS = {True: TRUE, False: FALSE}  # by Python's values and NumPy's, which are equal


class GymnasiumEnv:
    """Flattens observations, rebuilds actions and keeps termination and truncation apart.

    Its first episode is seeded, the following ones go on from there. Numbers in `info` appear under `log/`, on the
    steps that have them. `options.repeat` steps the environment several times per action and shows the last observation
    with the sum of the rewards and of the numbers in `info`.
    """

    def __init__(self, env: Any, name: str, options: EnvOptions, seed: int, notes: list[str]) -> None:
        self._env = env
        self.name = name
        self._observe = Observations(env.observation_space, name, options, notes)
        self.readings = self._observe.readings
        self._act = Actions(env.action_space, name)
        self._repeat = max(options.repeat, 1)
        self._seed: int | None = seed
        self._done = True
        self.obs_space: dict[str, Space] = {**self._observe.spaces, **FLAG_SPACES}
        self.act_space: dict[str, Space] = {**self._act.spaces, "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if self._done or action["reset"]:
            return self._begin()
        obs, reward, terminated, truncated, info = self._step(self._act(action))
        try:
            is_terminal, is_cut = FLAGS[terminated], FLAGS[truncated]
        except (KeyError, TypeError):  # what is no bool, or cannot be looked up
            is_terminal = FLAGS[flag(terminated, "terminated", self.name)]
            is_cut = FLAGS[flag(truncated, "truncated", self.name)]
        is_last = is_terminal or is_cut
        self._done = is_last is TRUE
        result = self._observe(obs)
        result["reward"] = self._number(reward)
        result["is_first"] = FALSE
        result["is_last"] = is_last
        result["is_terminal"] = is_terminal
        if info:
            if type(info) is not dict:
                expect_info(info, self.name)
            add_numbers(result, info, "log")
        return result

    def close(self) -> None:
        self._env.close()

    def _begin(self) -> dict[str, Any]:
        obs, info = reset(self._env, self.name, self._seed)
        self._seed = None
        self._done = False
        result = self._observe(obs)
        result["reward"] = NO_REWARD
        result["is_first"] = TRUE
        result["is_last"] = FALSE
        result["is_terminal"] = FALSE
        if info:
            add_numbers(result, info, "log")
        return result

    def _number(self, reward: Any) -> Any:
        if reward is None:  # which NumPy takes for NaN
            raise no_reward(reward, self.name)
        try:
            number: Any = np.float32(reward)  # an array of what is no single number
        except (TypeError, ValueError):
            raise no_reward(reward, self.name) from None
        if type(number) is np.ndarray and number.size > 1:  # a shape of one element is for the space checks to name
            raise several_parts(self.name, number.shape)
        return number

    def _step(self, action: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        result = self._env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise wrong_step(self.name, result)
        return result if self._repeat == 1 else self._step_on(action, result)

    def _step_on(self, action: Any, result: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
        total, numbers = result[1], numbers_of(result[4])
        self._number(total)  # names what is no number before it is added
        for _ in range(self._repeat - 1):
            if flag(result[2], "terminated", self.name) or flag(result[3], "truncated", self.name):
                break
            result = self._env.step(action)
            if not isinstance(result, tuple) or len(result) != 5:
                raise wrong_step(self.name, result)
            self._number(result[1])
            total = total + result[1]
            for key, value in numbers_of(result[4]).items():
                numbers[key] = numbers.get(key, 0.0) + value
        return result[0], total, result[2], result[3], numbers


def reset(env: Any, name: str, seed: int | None, **kwargs: Any) -> tuple[Any, Mapping[str, Any]]:
    """Resets an environment or a batch of them, and says what is wrong with one that follows an older interface."""
    try:
        result = env.reset(**kwargs) if seed is None else env.reset(seed=seed, **kwargs)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise EnvError(f"{name}: {error}: give it the signature reset(self, *, seed=None, options=None)") from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise EnvError(f"{name}: reset() returned {describe(result)}: return (observation, info) with info a dict")
    return result


def wrong_step(name: str, result: Any) -> EnvError:
    hint = ""
    if isinstance(result, tuple) and len(result) == 4:
        hint = ", as old gym did; `done` is terminated where the task ended, truncated where time ran out"
    return EnvError(
        f"{name}: step() returned {describe(result)}{hint}: return (observation, reward, terminated, truncated, info)"
    )


def describe(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)} ({', '.join(type(part).__name__ for part in result)})"
    return f"a {type(result).__name__}"


def numbers_of(info: Mapping[str, Any] | None) -> dict[str, float]:
    numbers: dict[str, float] = {}
    add_numbers(numbers, info or {}, "")
    return numbers


def add_numbers(result: dict[str, Any], info: Mapping[str, Any], prefix: str) -> None:
    """Puts the numbers of `info` and of the dictionaries inside it into `result`, names joined by "/"."""
    for key, value in info.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, NUMBERS):
            result[name] = _to_float(value)
        elif isinstance(value, Mapping):
            add_numbers(result, value, name)
        elif type(value) is np.ndarray and value.shape == () and value.dtype.kind in "biuf":
            result[name] = float(value)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer may be larger than any float
        return math.nan
