"""The built-in test environments: cheap, deterministic, and together they have every kind of space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space

ACTIONS = 5
IMAGES = 16


class Dummy:
    """Episodes of `length` steps. The rewarded action is shown in `vector` and changes every step.

    A policy that always takes it earns `length`, a random one a fifth of that.
    """

    def __init__(self, seed: int = 0, length: int = 100, size: int = 64) -> None:
        rng = np.random.default_rng(seed)
        self.optimum = float(length)
        self.chance = length / ACTIONS
        self._length = length
        self._images = rng.integers(0, 256, (IMAGES, size, size, 3), np.uint8)
        self._targets = np.eye(ACTIONS, dtype=np.float32)
        self._step = 0
        self._done = True
        self.obs_space = {
            "image": Space(np.uint8, (size, size, 3)),
            "vector": Space(np.float32, (ACTIONS,)),
            "count": Space(np.int32, (), 0, length + 1),
            "reward": Space(np.float32),
            "is_first": Space(bool),
            "is_last": Space(bool),
            "is_terminal": Space(bool),
        }
        self.act_space = {"action": Space(np.int32, (), 0, ACTIONS), "reset": Space(bool)}

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._step = 0
            self._done = False
            return self._observe(0.0)
        rewarded = self._step % ACTIONS
        self._step += 1
        self._done = self._step >= self._length
        return self._observe(float(action["action"] == rewarded))

    def close(self) -> None:
        pass

    def _observe(self, reward: float) -> dict[str, Any]:
        return {
            "image": self._images[self._step % IMAGES],
            "vector": self._targets[self._step % ACTIONS],
            "count": np.int32(self._step),
            "reward": np.float32(reward),
            "is_first": np.bool_(self._step == 0),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(False),
        }


@dataclass(frozen=True)
class Kinds:
    """What a task of `SpaceKinds` is made of: observations beside `count`, actions, and how an episode ends."""

    obs: Mapping[str, Space]
    act: Mapping[str, Space]
    terminates: bool = False  # else its end is a truncation


VECTOR = {"vector": Space(np.float32, (3,))}
DISCRETE = {"action": Space(np.int32, (), 0, ACTIONS)}

TASKS: dict[str, Kinds] = {
    "discrete": Kinds(VECTOR, DISCRETE),
    "multidiscrete": Kinds(VECTOR, {"action": Space(np.int32, (3,), 0, [2, 3, 5])}),
    "multibinary": Kinds(VECTOR, {"action": Space(bool, (4,))}),
    "continuous": Kinds(VECTOR, {"action": Space(np.float32, (3,), -1.0, 1.0)}),
    "unbounded": Kinds(VECTOR, {"action": Space(np.float32, (2,))}),
    "mixed": Kinds(
        VECTOR,
        {
            "action/move": Space(np.int32, (), 0, 4),
            "action/dials": Space(np.int32, (2,), 0, [2, 3]),
            "action/buttons": Space(bool, (3,)),
            "action/arm/turn": Space(np.float32, (2,), -1.0, 1.0),
            "action/arm/force": Space(np.float32),
        },
    ),
    "observations": Kinds(
        {
            "image": Space(np.uint8, (48, 48, 3)),
            "depth": Space(np.uint8, (48, 48, 1)),
            "vector": Space(np.float32, (3,)),
            "bounded": Space(np.float32, (2,), -2.0, [0.5, 3.0]),
            "matrix": Space(np.float32, (2, 3)),
            "scalar": Space(np.float32),
            "discrete": Space(np.int32, (), 0, 7),
            "multidiscrete": Space(np.int32, (3,), 0, [2, 3, 5]),
            "multibinary": Space(bool, (4,)),
            "flag": Space(bool),
            "nested/part/vector": Space(np.float32, (2,)),
            "nested/part/discrete": Space(np.int32, (), 0, 3),
        },
        DISCRETE,
    ),
    "truncating": Kinds(VECTOR, DISCRETE),
    "terminating": Kinds(VECTOR, DISCRETE, terminates=True),
    "logs": Kinds({**VECTOR, "log/twice": Space(np.float32), "log/flag": Space(bool)}, DISCRETE),
}


class SpaceKinds:
    """Episodes of `length` steps whose observations are drawn from their spaces.

    Only `count`, the step within the episode, means something: an integer element of the action is right when it equals
    `count` modulo its classes, a continuous one when its sign is positive at even counts and negative at odd ones. The
    reward is the share of elements that were right, so the best policy earns `length`.
    """

    def __init__(self, kinds: Kinds, seed: int = 0, length: int = 20) -> None:
        flags = {"is_first": Space(bool), "is_last": Space(bool), "is_terminal": Space(bool)}
        count = Space(np.int32, (), 0, length + 1)
        self.obs_space = {**kinds.obs, "count": count, "reward": Space(np.float32), **flags}
        self.act_space = {**kinds.act, "reset": Space(bool)}
        self.optimum = float(length)
        self.chance = length * float(np.mean([luck for space in kinds.act.values() for luck in _luck(space)]))
        self._kinds = kinds
        self._length = length
        self._rng = np.random.default_rng(seed)
        self._step = 0
        self._done = True

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        if action["reset"] or self._done:
            self._step = 0
            self._done = False
            return self._observe(0.0)
        right = [_right(space, action[key], self._step) for key, space in self._kinds.act.items()]
        self._step += 1
        self._done = self._step >= self._length
        return self._observe(float(np.concatenate(right).mean()))

    def close(self) -> None:
        pass

    def _observe(self, reward: float) -> dict[str, Any]:
        drawn: dict[str, Any] = {key: space.sample(self._rng) for key, space in self._kinds.obs.items()}
        if "log/twice" in drawn:
            drawn |= {"log/twice": np.float32(2 * self._step), "log/flag": np.bool_(self._done)}
        return {
            **drawn,
            "count": np.int32(self._step),
            "reward": np.float32(reward),
            "is_first": np.bool_(self._step == 0),
            "is_last": np.bool_(self._done),
            "is_terminal": np.bool_(self._done and self._kinds.terminates),
        }


def _right(space: Space, value: Any, count: int) -> np.ndarray:
    value = np.atleast_1d(value)
    if space.discrete:
        return np.asarray(value == count % space.classes)
    return np.asarray(value < 0 if count % 2 else value > 0)


def _luck(space: Space) -> list[float]:
    """How likely each element is right when drawn at random."""
    return list(1 / np.atleast_1d(space.classes).astype(float)) if space.discrete else [0.5] * math.prod(space.shape)
