"""Observations that leave their declared bounds, which `env.clip=true` brings back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ADVICE = "set env.clip=true to clip it into its bounds"


def make_clip(low: Any, high: Any, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return a function that clips numbers into `low` to `high`, both inclusive, and passes everything else.

    NaN passes, and so does an array of another shape: what is wrong with these is for the space checks to name.
    """
    low, high = np.asarray(low), np.asarray(high)

    def clip(value: Any) -> Any:
        try:
            array = np.asarray(value)
        except ValueError:  # rows of unequal lengths
            return value
        if array.dtype.kind not in "iuf" or array.shape != shape:
            return value
        if not ((array < low) | (array > high)).any():
            return value
        clipped = np.clip(array, low, high).astype(array.dtype)
        return clipped.item() if isinstance(value, int | float) else clipped[()]

    return clip


def advice(violation: str) -> str:
    """Return the end of a message about a violation of a space: what to do besides changing the environment."""
    return f", or {ADVICE}" if violation.startswith("value ") else ""
