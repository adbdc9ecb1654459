"""Rewards with several parts, as multi-objective environments return them, weighed into the number an agent takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dreamfleet.core.errors import SpaceMismatch

OBJECTIVES = "env.wrappers=[mo_gymnasium.wrappers:LinearReward]"


class Weighing:
    """Calling it turns the parts of a reward into their weighted sum, or those of each of `rows`."""

    def __init__(self, weights: Sequence[float], name: str, rows: int | None = None) -> None:
        self._weights = np.asarray(weights, np.float64)
        self._shape = (len(weights),) if rows is None else (rows, len(weights))
        self._name = name

    def __call__(self, reward: Any) -> Any:
        try:
            parts = np.asarray(reward, np.float64)
        except (TypeError, ValueError):
            parts = np.asarray(None)
        if parts.shape != self._shape:
            raise self._differs(parts.shape)
        return parts @ self._weights

    def check(self, declared: tuple[int, ...]) -> None:
        """Raise for a declared reward, of one row, that the weights do not fit; () says nothing."""
        if declared and declared != self._weights.shape:
            raise self._differs(declared)

    def _differs(self, shape: tuple[int, ...]) -> SpaceMismatch:
        return SpaceMismatch(
            f"{self._name}: the reward has shape {shape}, and env.reward_weights has {len(self._weights)}: give one "
            "weight for each part, or unset it if the reward is a number"
        )


def several_parts(name: str, shape: tuple[int, ...]) -> SpaceMismatch:
    """Return the error for a reward of this shape, without rows, that nothing weighs."""
    return SpaceMismatch(f"{name}: the reward has shape {shape} instead of being a number: {way_out(shape)}")


def check_declared(env: Any, name: str, weighed: bool) -> None:
    """Raise for an environment that declares a reward with several parts, which nothing makes a number of."""
    shape = declared_parts(env)
    if shape and not weighed:
        raise several_parts(name, shape)
    rows = getattr(env, "envs", None) if type(env).__module__.startswith("gymnasium.") else None
    if rows and (shape := declared_parts(rows[0])):
        raise SpaceMismatch(
            f"{name}: the rewards of its environments have shape {shape}, and a {type(env).__name__} holds one number "
            "for each: set env.vector=false, or return a mo_gymnasium.wrappers.vector.MOSyncVectorEnv from a factory"
        )


def way_out(shape: tuple[int, ...]) -> str:
    if len(shape) != 1:
        return "return a number"
    weights = f"env.reward_weights=[{', '.join(['1'] * shape[0])}]"
    if shape[0] == 1:
        return f"return a number, or set {weights}"
    return f"weigh its parts with {weights}, or make it a number with {OBJECTIVES}"


def declared_parts(env: Any) -> tuple[int, ...]:
    """Return the shape of the reward that a multi-objective environment declares, () if it is a number.

    Only a chain of Gymnasium's own wrappers is looked through: any other may have made a number of it.
    """
    while env is not (inner := getattr(env, "env", env)):
        if not type(env).__module__.startswith("gymnasium.") or "Reward" in type(env).__name__:
            return ()
        env = inner
    return tuple(getattr(getattr(env, "reward_space", None), "shape", None) or ())
