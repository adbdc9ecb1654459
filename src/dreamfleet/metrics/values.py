"""The three kinds of values a metric can have: a number, several numbers, and a video.

A row is what sinks are given: `step` and `time`, and every metric under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamfleet.core.spaces import are_images

Row = Mapping[str, Any]
MARKS = ("step", "time")
LONGEST_NAME = 256


def is_name(text: str) -> bool:
    """Whether every sink can write a metric of this name."""
    return len(text) <= LONGEST_NAME and text.isprintable()


def is_number(value: Any) -> bool:
    if isinstance(value, str | bytes | list | tuple | Mapping):  # of which NumPy may make no array at all
        return False
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "fiub"


def is_values(value: Any) -> bool:
    """Several numbers of which the distribution is of interest."""
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "fiu"


def is_video(value: Any) -> bool:
    """Frames as [time, height, width, channels]."""
    return isinstance(value, np.ndarray) and are_images(value) and value.size > 0


def numbers(row: Row) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key not in MARKS and is_number(value)}


def distributions(row: Row) -> dict[str, np.ndarray]:
    """Without what is not finite, and without those of which nothing is left."""
    found = {key: value[np.isfinite(value)] for key, value in row.items() if is_values(value)}
    return {key: values for key, values in found.items() if values.size}


def videos(row: Row) -> dict[str, np.ndarray]:
    return {key: value for key, value in row.items() if is_video(value)}


def size_bytes(row: Row) -> int:
    return sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
