"""Actions of ours as Gymnasium's: flat keys become the nested structure, shape and dtype that the space declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from dreamfleet.core.errors import EnvError
from dreamfleet.core.spaces import Space
from dreamfleet.envs.action_scale import ActionScale
from dreamfleet.envs.gym.observations import Path, children, join, leaves, unique
from dreamfleet.envs.gym.readers import INT32

Convert = Callable[[Any], Any]
Build = Callable[[Mapping[str, Any]], Any]


class Actions:
    """Calling it turns an action of the agent into one of the environment's, or a batch of them where `batched`.

    Integers begin at 0 for the agent, and continuous actions with bounds fill [-1, 1].
    """

    def __init__(self, space: Any, name: str, batched: bool = False) -> None:
        found = list(leaves(space, f"{name}: action_space"))
        keys = ["action" + "".join(f"/{part}" for part in path) for path, _ in found]
        unique(keys, f"{name}: action_space")
        self.spaces: dict[str, Space] = {}
        converts: dict[Path, tuple[str, Convert]] = {}
        for key, (path, leaf) in zip(keys, found, strict=True):
            self.spaces[key], convert = _action(leaf, f"{name}: action {join(path)!r}" if path else name, batched)
            converts[path] = (key, convert)
        self._build = _plan(space, (), converts)

    def __call__(self, action: Mapping[str, Any]) -> Any:
        return self._build(action)


def _plan(space: Any, path: Path, converts: Mapping[Path, tuple[str, Convert]]) -> Build:
    if path in converts:
        key, convert = converts[path]
        return lambda action: convert(action[key])
    parts = [(part, _plan(inner, (*path, part), converts)) for part, inner in children(space)]
    if isinstance(space, gym.Dict):
        return lambda action: {part: build(action) for part, build in parts}
    return lambda action: tuple(build(action) for _, build in parts)


def _action(space: Any, what: str, batched: bool) -> tuple[Space, Convert]:
    dtype = np.dtype(space.dtype)
    if isinstance(space, gym.Discrete):
        return _choice(space, what, batched)
    if isinstance(space, gym.MultiDiscrete):
        start = np.asarray(getattr(space, "start", 0), np.int64)
        return Space(np.int32, space.shape, 0, _classes(space.nvec, space, what)), _shift(start, dtype)
    if isinstance(space, gym.MultiBinary) or dtype.kind == "b":
        return Space(bool, space.shape), lambda value: np.array(value, dtype)
    if dtype.kind == "f":
        scale = ActionScale(space.low, space.high, dtype, space.shape)
        return scale.space, scale
    if dtype.kind not in "iu":
        raise EnvError(f"{what} is a Box of dtype {dtype}: use floats, integers or booleans")
    classes = space.high.astype(np.float64) - space.low.astype(np.float64) + 1
    return Space(np.int32, space.shape, 0, _classes(classes, space, what)), _shift(space.low.astype(np.int64), dtype)


def _choice(space: Any, what: str, batched: bool) -> tuple[Space, Convert]:
    ours = Space(np.int32, (), 0, _classes(space.n, space, what))
    scalar, start = space.dtype.type, int(space.start)
    if batched:
        return ours, _shift(np.asarray(start, np.int64), np.dtype(space.dtype))
    if start == 0:
        return ours, scalar
    return ours, lambda value: scalar(int(value) + start)


def _shift(start: np.ndarray, dtype: np.dtype) -> Convert:
    if not start.any():
        return lambda value: np.array(value, dtype)
    return lambda value: np.array(value + start, dtype)


def _classes(count: Any, space: Any, what: str) -> np.ndarray:
    if np.any(np.asarray(count) > INT32.max):
        raise EnvError(
            f"{what} is {space}, which has more values than an agent can choose from: "
            "declare a Box of floats and round, or fewer values"
        )
    return np.asarray(count).astype(np.int64)
