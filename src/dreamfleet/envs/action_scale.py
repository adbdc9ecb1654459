"""Continuous actions: the agent acts in [-1, 1], the environment within the bounds that it declares."""

from __future__ import annotations

from typing import Any

import numpy as np

from dreamfleet.core.spaces import Space

NO_BOUND = float(np.finfo(np.float32).max)  # who declares the largest float as a bound means that there is none


class ActionScale:
    """Maps one action of the agent to the environment's, element by element.

    An element with two finite bounds is [-1, 1] to the agent, `space` says so; it is clipped and scaled. An element
    with an open side passes unscaled, clipped on the side that has a bound. Leading axes of the value pass through.
    The clip happens here, past the agent, so that replay keeps the action as the policy gave it.
    """

    def __init__(self, low: Any, high: Any, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self._low = open_bound(low, shape)
        self._high = open_bound(high, shape)
        closed = np.isfinite(self._low) & np.isfinite(self._high)
        low, high = np.where(closed, self._low, -1.0), np.where(closed, self._high, 1.0)
        self._half_range = (high - low) / 2
        self._middle = (high + low) / 2
        self.space = Space(np.float32, shape, np.where(closed, -1.0, self._low), np.where(closed, 1.0, self._high))
        self._passes = bool(np.isinf(self._low).all() and np.isinf(self._high).all())
        self._scales = bool((self._half_range != 1).any() or (self._middle != 0).any())

    def __call__(self, value: Any) -> np.ndarray:
        """Always a new array of the environment's dtype, which the environment may keep."""
        if not self._passes:
            if self._scales:
                value = value * self._half_range + self._middle
            value = np.minimum(np.maximum(value, self._low), self._high)
        return np.array(value, self.dtype)


def open_bound(bound: Any, shape: tuple[int, ...]) -> np.ndarray:
    wide = np.broadcast_to(np.asarray(bound, np.float64), shape)
    return np.where(np.abs(wide) >= NO_BOUND, np.copysign(np.inf, wide), wide)
