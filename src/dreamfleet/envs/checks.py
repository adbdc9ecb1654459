"""Holds an environment to its declared spaces, on every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.errors import EnvError, SpaceMismatch
from dreamfleet.core.interfaces import Env, EnvBatch
from dreamfleet.core.spaces import LOG_PREFIX, REWARD, STEP_KEYS, Space
from dreamfleet.envs.clip import advice

# What the fleet adds to a step on its way to the agent.
TAKEN = {"slot", "stream", "is_eval", "known", "stepid", "consec", "run_step", "run_epoch"}

Fast = Callable[[Any], bool]


class Problem(NamedTuple):
    """What is wrong with a step."""

    kind: str  # one word, for machines
    where: str
    problem: str  # follows on `where` and "has"
    fix: str

    def error(self, name: str) -> SpaceMismatch:
        return SpaceMismatch(f"{name}: {self.where} has {self.problem}: {self.fix}")


OnProblem = Callable[[Problem], None]


class CheckSpaces:
    """Passes steps through and raises `SpaceMismatch` on the first observation that breaks its space.

    Errors begin with `name`, which says which environment it is. Scalars under `log/` may come without being declared.
    With `on_problem`, nothing is raised: it takes every problem of a step.
    """

    def __init__(self, env: Env, name: str, on_problem: OnProblem | None = None) -> None:
        _check_keys(env, name)
        self._env = env
        self._check = StepCheck(env.obs_space, name, on_problem=on_problem)
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

    def __init__(self, env: EnvBatch, name: str, on_problem: OnProblem | None = None) -> None:
        _check_keys(env, name)
        self._env = env
        self._name = name
        self.num_envs = env.num_envs
        self._check = StepCheck(env.obs_space, name, self.num_envs, on_problem)
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


class StepCheck:
    """What the keys and values of one step must be. The usual case of a kind of space takes well below a microsecond;
    what that does not let pass goes to `Space.violation`, which decides and finds the words."""

    def __init__(
        self, spaces: Mapping[str, Space], name: str, rows: int | None = None, on_problem: OnProblem | None = None
    ) -> None:
        self._spaces = dict(spaces)
        self._name = name
        self._rows = rows
        self._on_problem = on_problem or self._raise
        self._checks = [(key, _fast_check(space, rows, key == REWARD)) for key, space in spaces.items()]

    def __call__(self, obs: Mapping[str, Any], rows: np.ndarray | None = None) -> None:
        """`rows` names those that count, in a batch where not all do."""
        complete = True
        try:
            for key, passes in self._checks:
                if not passes(obs[key]):
                    self._check_slowly(key, obs[key], rows)
        except (KeyError, TypeError):
            complete = self._has_all(obs)
            if complete:
                raise
        if not complete:
            self._check_keys(obs, key, rows)
        elif len(obs) != len(self._checks):
            self._check_others(obs)

    def _raise(self, problem: Problem) -> None:
        raise problem.error(self._name)

    def _check_slowly(self, key: str, value: Any, rows: np.ndarray | None) -> None:
        violation = self._violation(key, value, rows)
        if violation:
            kind = _kind(violation)
            fix = (
                f"return what obs_space declares, {self._spaces[key]}, or declare what step returns{advice(violation)}"
            )
            if kind == "nan":
                fix = "look for what divides by zero or has no value yet, or use np.nan_to_num"
            elif key == REWARD and kind != "dtype":
                fix = "return a finite number"
            self._on_problem(Problem(kind, f"observation {key!r}", violation, fix))

    def _violation(self, key: str, value: Any, rows: np.ndarray | None) -> str | None:
        space = self._spaces[key]
        if self._rows is None:
            return self._violation_of_one(key, value)
        if np.shape(value) != (self._rows, *space.shape):
            return f"shape {np.shape(value)} instead of {(self._rows, *space.shape)}, one row per environment"
        for row in range(self._rows) if rows is None else np.flatnonzero(rows):
            violation = self._violation_of_one(key, value[row])
            if violation:
                return f"{violation} in row {row}"
        return None

    def _violation_of_one(self, key: str, value: Any) -> str | None:
        violation = self._spaces[key].violation(value)
        if violation is None and key == REWARD and not np.isfinite(value).all():
            return f"value {value}, which is not finite"
        return violation

    def _has_all(self, obs: Any) -> bool:
        return isinstance(obs, Mapping) and self._spaces.keys() <= obs.keys()

    def _check_keys(self, obs: Any, lacking: str, rows: np.ndarray | None) -> None:
        """Takes a step that lacks keys, from the first of them on."""
        fix = "return every key that obs_space declares"
        if not isinstance(obs, Mapping):
            self._on_problem(Problem("type", "step", f"returned a {type(obs).__name__}, which is no dict", fix))
            return
        missing = [key for key in self._spaces if key not in obs]
        self._on_problem(Problem("missing", "observation", f"no {missing}", fix))
        keys = list(self._spaces)
        for key in keys[keys.index(lacking) :]:
            if key in obs:
                self._check_slowly(key, obs[key], rows)
        self._check_others(obs)

    def _check_others(self, obs: Mapping[str, Any]) -> None:
        """Takes the keys that are not declared."""
        undeclared = []
        for key in obs.keys() - self._spaces.keys():
            if key.startswith(LOG_PREFIX):
                self._check_log(key, obs[key])
            else:
                undeclared.append(key)
        if undeclared:
            fix = "declare them in obs_space or drop them"
            self._on_problem(Problem("undeclared", "observation", f"{sorted(undeclared)} besides", fix))

    def _check_log(self, key: str, value: Any) -> None:
        if self._rows is None and type(value) is float:
            return
        array = np.asarray(value)
        if array.shape != (() if self._rows is None else (self._rows,)) or array.dtype.kind not in "biuf":
            wanted = "a number" if self._rows is None else f"{self._rows} numbers, one per environment"
            violation = f"shape {array.shape} and dtype {array.dtype}"
            fix = f"what comes under {LOG_PREFIX} without being declared in obs_space must be {wanted}"
            self._on_problem(Problem("log", repr(key), violation, fix))


def _kind(violation: str) -> str:
    """One word for it: the first one of its description."""
    word = violation.partition(" ")[0].lower()
    return {"value": "bounds"}.get(word, word)


def _fast_check(space: Space, rows: int | None, finite: bool = False) -> Fast:
    """A function that is true for most values of the space and for no others, nor for infinite ones if `finite`."""
    dtype, shape = space.dtype, space.shape if rows is None else (rows, *space.shape)
    if finite:
        space = space.finite()
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
    missing = [key for key in STEP_KEYS if key not in obs]
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
