"""Stands in front of a Gymnasium environment and holds what it returns against what it declares.

Whatever is wrong is collected and put right, so that the adapter behind can go on and more can be found.
"""

from __future__ import annotations

import inspect
import time
from typing import Any

import numpy as np

from dreamfleet.envs.inspection.gym_values import fit
from dreamfleet.envs.inspection.violations import UnusableStep, Violations
from dreamfleet.envs.rewards import way_out

STEP_FIX = "return (observation, reward, terminated, truncated, info)"
RESET_FIX = "return (observation, info), with an empty dict where there is nothing to say"


class Watched:
    """Has everything that the environment has. `overhead_s` is what watching has cost."""

    def __init__(self, env: Any, found: Violations) -> None:
        self._env = env
        self._found = found
        self._rows = getattr(env, "num_envs", None)  # None: one environment, whose values have no leading axis
        self._plain_reset = not _takes_seed(env)
        self.overhead_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if self._plain_reset:
            fix = "write def reset(self, *, seed=None, options=None) and begin with super().reset(seed=seed)"
            self._found.add("reset", "reset", "takes no seed", fix)
            kwargs = {}
        result = self._env.reset(**kwargs)
        begin = time.perf_counter()
        fitted = self._fit_reset(result)
        self.overhead_s += time.perf_counter() - begin
        return fitted

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self._env.step(action)
        begin = time.perf_counter()
        fitted = self._fit_step(result)
        self.overhead_s += time.perf_counter() - begin
        return fitted

    def _fit_reset(self, result: Any) -> tuple[Any, dict[str, Any]]:
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            obs, info = result
        else:
            self._found.add("reset", "reset", f"returns {_describe(result)} instead of (observation, info)", RESET_FIX)
            obs, info = result, {}
        return fit(self._env.observation_space, obs, "", self._found), info

    def _fit_step(self, result: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        size = len(result) if isinstance(result, tuple) else 0
        if size == 4:
            self._found.add(
                "step",
                "step",
                "returns 4 values (obs, reward, done, info), as the old gym did",
                f"{STEP_FIX}: terminated where the task ended, truncated where only time ran out",
            )
            obs, reward, done, info = result
            result = (obs, reward, done, False if self._rows is None else np.zeros(self._rows, bool), info)
        elif size != 5:
            self._found.add("step", "step", f"returns {_describe(result)}", STEP_FIX)
            raise UnusableStep
        obs, reward, terminated, truncated, info = result
        if not isinstance(info, dict):
            self._found.add("info", "info", f"a {type(info).__name__} instead of a dict", "return {} at least")
            info = {}
        return (
            fit(self._env.observation_space, obs, "", self._found),
            self._fit_reward(reward),
            self._fit_flag("terminated", terminated),
            self._fit_flag("truncated", truncated),
            info,
        )

    def _fit_reward(self, reward: Any) -> Any:
        shape = () if self._rows is None else (self._rows,)
        wanted = "a number" if self._rows is None else f"an array of {self._rows} numbers"
        number = _numbers(reward)
        if number is None or number.shape != shape:
            parts = number is not None and number.ndim == len(shape) + 1 and way_out(number.shape[len(shape) :])
            fix = parts or f"return {wanted}"
            self._found.add("reward", "reward", f"{_describe(reward)} instead of {wanted}", fix)
            number = np.zeros(shape) if number is None or number.size != np.prod(shape) else number.reshape(shape)
        if not np.isfinite(number).all():
            self._found.add("nan", "reward", f"is {number[~np.isfinite(number)].flat[0]}", "return finite rewards")
            number = np.nan_to_num(number, posinf=0.0, neginf=0.0)
        return float(number) if self._rows is None else number

    def _fit_flag(self, name: str, flag: Any) -> Any:
        if self._rows is None:
            if not isinstance(flag, (bool, np.bool_)):
                self._found.add("flag", name, f"{_describe(flag)} instead of a bool", f"return bool({name})")
            return bool(np.any(flag))
        array = np.asarray(flag)
        if array.shape != (self._rows,) or array.dtype != bool:
            wanted = f"a bool array of {self._rows}"
            self._found.add("flag", name, f"{_describe(flag)} instead of {wanted}", f"return {wanted}")
            array = np.resize(array.astype(bool), (self._rows,))
        return array


def _takes_seed(env: Any) -> bool:
    try:
        parameters = inspect.signature(getattr(env, "unwrapped", env).reset).parameters.values()
    except (TypeError, ValueError, AttributeError):
        return True
    return any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _numbers(value: Any) -> np.ndarray | None:
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{str(value)[:40]!r} (a {type(value).__name__})"
