"""Holds an environment to its declared spaces, on every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.spaces import Space
from dreamfleet.envs.clipping import advice

FLAGS = ("reward", "is_first", "is_last", "is_terminal")
# What the fleet adds to a step on its way to the agent.
TAKEN = {"slot", "stream", "is_eval", "known", "stepid", "consec", "run_step"}
LOG = "log/"

Fast = Callable[[Any], bool]


class CheckSpaces:
    """Passes steps through and raises `SpaceMismatch` on the first observation that breaks its space.

    Errors begin with `name`, which says which environment it is. Scalars under `log/` may come without being declared.
    """

    def __init__(self, env: Env, name: str) -> None:
        _check_keys(env, name)
        self._env = env
        self._check = _StepCheck(env.obs_space, name)
        self.obs_space: Mapping[str, Space] = dict(env.obs_space)
        self.act_space: Mapping[str, Space] = dict(env.act_space)
        self.readings: Mapping[str, Any] = getattr(env, "readings", {})  # of Gymnasium's spaces, see `readings`

    def step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        obs = self._env.step(action)
        self._check(obs)
        return obs

    def close(self) -> None:
        self._env.close()


class CheckBatch:
    """As `CheckSpaces`, for environments that step together; a bad value is named with its row."""

    def __init__(self, env: EnvBatch, name: str) -> None:
        _check_keys(env, name)
        self._env = env
        self._name = name
        self.num_envs = env.num_envs
        self._check = _StepCheck(env.obs_space, name, self.num_envs)
        self.obs_space: Mapping[str, Space] = dict(env.obs_space)
        self.act_space: Mapping[str, Space] = dict(env.act_space)
        self.readings: Mapping[str, Any] = getattr(env, "readings", {})  # of Gymnasium's spaces, see `readings`

    def step(self, actions: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        obs = self._env.step(actions)
        self._check(obs)
        return obs

    def begun(self) -> np.ndarray:
        begun = self._env.begun()
        if np.shape(begun) != (self.num_envs,) or np.asarray(begun).dtype != bool:
            raise SpaceMismatch(f"{self._name}: begun() returned {begun!r}: return {self.num_envs} booleans")
        return begun

    def first(self) -> Mapping[str, np.ndarray]:
        obs = self._env.first()
        self._check(obs, self.begun())
        return obs

    def close(self) -> None:
        self._env.close()


class _StepCheck:
    """What the keys and values of one step must be. The usual case of a kind of space takes well below a microsecond;
    what that does not let pass goes to `Space.violation`, which decides and finds the words."""

    def __init__(self, spaces: Mapping[str, Space], name: str, rows: int | None = None) -> None:
        self._spaces = dict(spaces)
        self._name = name
        self._rows = rows
        self._checks = [(key, _fast_check(space, rows)) for key, space in spaces.items()]

    def __call__(self, obs: Mapping[str, Any], rows: np.ndarray | None = None) -> None:
        """`rows` names those that count, in a batch where not all do."""
        try:
            for key, passes in self._checks:
                if not passes(obs[key]):
                    self._check_slowly(key, obs[key], rows)
        except KeyError:
            if not self._spaces.keys() <= obs.keys():
                raise self._keys_differ(obs) from None
            raise
        if len(obs) != len(self._checks):
            for key in obs.keys() - self._spaces.keys():
                self._check_log(key, obs)

    def _check_slowly(self, key: str, value: Any, rows: np.ndarray | None) -> None:
        violation = self._violation(self._spaces[key], value, rows)
        if violation:
            raise SpaceMismatch(
                f"{self._name}: observation {key!r} has {violation}: "
                f"return what obs_space declares, {self._spaces[key]}, or declare what step returns{advice(violation)}"
            )

    def _violation(self, space: Space, value: Any, rows: np.ndarray | None) -> str | None:
        if self._rows is None:
            return space.violation(value)
        if np.shape(value) != (self._rows, *space.shape):
            return f"shape {np.shape(value)} instead of {(self._rows, *space.shape)}, one row per environment"
        for row in range(self._rows) if rows is None else np.flatnonzero(rows):
            violation = space.violation(value[row])
            if violation:
                return f"{violation} in row {row}"
        return None

    def _check_log(self, key: str, obs: Mapping[str, Any]) -> None:
        if not key.startswith(LOG):
            raise self._keys_differ(obs)
        value = obs[key]
        if self._rows is None and type(value) is float:
            return
        array = np.asarray(value)
        if array.shape != (() if self._rows is None else (self._rows,)) or array.dtype.kind not in "biuf":
            wanted = "a number" if self._rows is None else f"{self._rows} numbers, one per environment"
            raise SpaceMismatch(
                f"{self._name}: {key!r} has shape {array.shape} and dtype {array.dtype}: what comes under {LOG} "
                f"without being declared in obs_space must be {wanted}"
            )

    def _keys_differ(self, obs: Mapping[str, Any]) -> SpaceMismatch:
        differ = sorted(
            key for key in obs.keys() ^ self._spaces.keys() if key in self._spaces or not key.startswith(LOG)
        )
        return SpaceMismatch(f"{self._name}: observation and obs_space differ in the keys {differ}")


def _fast_check(space: Space, rows: int | None) -> Fast:
    """A function that is true for most values of the space and for no others."""
    dtype, shape = space.dtype, space.shape if rows is None else (rows, *space.shape)
    if dtype.kind == "V":
        return lambda value: False
    low, high = space.low, space.high
    unbounded = space == Space(dtype, space.shape)
    if space.discrete and not unbounded:
        high = high - 1
    if not shape:
        return _fast_scalar(dtype, low[()].item(), high[()].item(), unbounded)
    if unbounded and space.discrete:
        return lambda value: type(value) is np.ndarray and value.shape == shape and value.dtype == dtype
    if unbounded:
        return _fast_floats(dtype, shape)
    low, high = np.array(low, dtype), np.array(high, dtype)
    size = int(np.prod(shape))
    count = np.count_nonzero

    def bounded(value: Any) -> bool:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
            return False
        return bool(count((value >= low) & (value <= high)) == size)

    return bounded


def _fast_scalar(dtype: np.dtype, low: Any, high: Any, unbounded: bool) -> Fast:
    kind = dtype.type
    if unbounded and dtype.kind == "b":
        return lambda value: type(value) is kind or type(value) is bool
    if unbounded and dtype.kind != "f":
        return lambda value: type(value) is kind
    return lambda value: type(value) is kind and low <= value <= high  # false for NaN


def _fast_floats(dtype: np.dtype, shape: tuple[int, ...]) -> Fast:
    isnan, count = np.isnan, np.count_nonzero

    def not_nan(value: Any) -> bool:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
            return False
        return not count(isnan(value))

    return not_nan


def _check_keys(env: Env | EnvBatch, name: str) -> None:
    """Observation and action travel side by side, together with the fleet's own keys."""
    obs, act = env.obs_space.keys(), env.act_space.keys()
    missing = [key for key in FLAGS if key not in obs]
    if missing:
        raise EnvError(f"{name} lacks {missing} in its obs_space: add them")
    if "reset" not in act:
        raise EnvError(f"{name} lacks 'reset' in its act_space: add it as a bool")
    taken = sorted((obs | act) & TAKEN)
    if taken:
        raise EnvError(f"{name} uses the keys {taken}, which the fleet needs for itself: rename them")
    shared = sorted(obs & act)
    if shared:
        raise EnvError(f"{name} has {shared} in both its obs_space and its act_space: rename one of them")
