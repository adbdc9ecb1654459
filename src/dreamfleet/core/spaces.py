"""Describes one array of an observation or action: its dtype, shape and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from dreamfleet.core.errors import SpaceMismatch

# Classes of all elements of a space together, up to which they are one-hot vectors. A wider space is better off as
# numbers: a network's first layer alone would have more weights than all the rest of it.
MAX_ONE_HOT = 2**16

REWARD = "reward"
EPISODE_FLAGS = ("is_first", "is_last", "is_terminal")
STEP_KEYS = (REWARD, *EPISODE_FLAGS)  # every observation has them, and no policy sees them
LOG_PREFIX = "log/"  # keys that only the logger gets

T = TypeVar("T")


class Space:
    """Bounds are inclusive for floats; `high` is exclusive for integers, so that `classes = high - low`.

    A space without bounds allows every value of its dtype except NaN.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...] = (), low: Any = None, high: Any = None) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "biufV":  # V: bfloat16
            raise SpaceMismatch(f"space of dtype {self.dtype}: only booleans, integers and floats have one")
        self.shape = tuple(int(n) for n in shape)
        self.discrete = self.dtype.kind in "iub"
        self.low = self._bound(low, self._default_low())
        self.high = self._bound(high, self._default_high())
        ordered = self.low < self.high if self.discrete else self.low <= self.high
        if not ordered.all():
            raise SpaceMismatch(f"space from low {low} to high {high} is empty")
        # Then a check of values can only waste time, and images are checked on every step.
        self._any_value = self.discrete and self._has_default_bounds()

    @property
    def classes(self) -> np.ndarray:
        """Number of values per element of a discrete space."""
        if not self.discrete:
            raise SpaceMismatch(f"{self} is continuous and has no classes")
        return np.asarray(self.high - self.low)

    def contains(self, value: Any) -> bool:
        return self.violation(value) is None

    def violation(self, value: Any) -> str | None:
        """Says what keeps `value` out of the space, or None if it belongs to it."""
        array = np.asarray(value)
        if array.shape != self.shape:
            return f"shape {array.shape} instead of {self.shape}"
        if array.dtype != self.dtype:
            return f"dtype {array.dtype} instead of {self.dtype}"
        if self._any_value:
            return None
        if self.dtype.kind == "V":
            array = array.astype(np.float32)  # exact, and compares with NaN without a warning
        below_high = array < self.high if self.discrete else array <= self.high
        if ((array >= self.low) & below_high).all():
            return None
        return self._out_of_bounds(array)

    def _out_of_bounds(self, array: np.ndarray) -> str:
        if not self.discrete and (nan := np.isnan(array)).any():
            return f"NaN{_place(nan)}"
        low = np.broadcast_to(self.low, array.shape)
        if (below := array < low).any():
            return f"value {array[below][0]!s}{_place(below)} below {low[below][0]!s}"
        above = array >= self.high if self.discrete else array > self.high
        limit = self.high - 1 if self.discrete else self.high
        return f"value {array[above][0]!s}{_place(above)} above {limit[above][0]!s}"

    def sample(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> np.ndarray:
        """Uniform within the bounds; from a standard normal where there are none, folded where there is one."""
        shape = (*batch, *self.shape)
        if self.discrete:
            return np.asarray(rng.integers(self.low, self.high, shape)).astype(self.dtype)
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        both = has_low & has_high
        uniform = rng.uniform(np.where(both, low, 0.0), np.where(both, high, 1.0), shape)
        normal = rng.standard_normal(shape)
        open_ended = np.where(has_low, low + np.abs(normal), np.where(has_high, high - np.abs(normal), normal))
        return np.asarray(np.where(both, uniform, open_ended)).astype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """The arguments that make this space again. A bound that is the same everywhere is one number."""
        return {
            "dtype": self.dtype.name,
            "shape": list(self.shape),
            "low": self._bound_json(self.low, self._default_low()),
            "high": self._bound_json(self.high, self._default_high()),
        }

    def finite(self) -> Space:
        """This space without infinities."""
        if self.discrete:
            return self
        largest = np.nextafter(np.array(np.inf, self.dtype), np.array(0, self.dtype))  # `finfo` lacks bfloat16
        return Space(self.dtype, self.shape, np.maximum(self.low, -largest), np.minimum(self.high, largest))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        same_kind = self.dtype == other.dtype and self.shape == other.shape
        return same_kind and bool((self.low == other.low).all() and (self.high == other.high).all())

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __repr__(self) -> str:
        low, high = (f"{b.min():g}" if b.size else "-" for b in (self.low, self.high))
        return f"Space({self.dtype.name}, {self.shape}, {low}, {high})"

    def _has_default_bounds(self) -> bool:
        return bool((self.low == self._default_low()).all() and (self.high == self._default_high()).all())

    def _bound(self, value: Any, default: Any) -> np.ndarray:
        wide = np.int64 if self.discrete else self.dtype
        array = np.array(default if value is None else value, wide)  # a copy: the caller may change theirs
        return np.broadcast_to(array, self.shape)

    def _bound_json(self, bound: np.ndarray, default: Any) -> Any:
        if (bound == default).all():
            return None
        if (bound == bound.flat[0]).all():
            return bound.flat[0].item()
        return bound.tolist()

    def _default_low(self) -> int | float:
        if not self.discrete:
            return -np.inf
        return 0 if self.dtype.kind == "b" else max(int(np.iinfo(self.dtype).min), -(2**62))

    def _default_high(self) -> int | float:
        if not self.discrete:
            return np.inf
        return 2 if self.dtype.kind == "b" else min(int(np.iinfo(self.dtype).max) + 1, 2**62)


def is_image(space: Space) -> bool:
    """Images are bytes with height, width and channels."""
    return space.dtype == np.uint8 and len(space.shape) == 3


def are_images(array: np.ndarray) -> bool:
    """Whether an array is a batch or a sequence of images."""
    return array.dtype == np.uint8 and array.ndim == 4


def without_log(by_key: Mapping[str, T]) -> dict[str, T]:
    return {key: value for key, value in by_key.items() if not key.startswith(LOG_PREFIX)}


def observed(by_key: Mapping[str, T]) -> dict[str, T]:
    """What a policy may see of an observation: neither the reward and the flags nor what is only logged."""
    return {key: value for key, value in without_log(by_key).items() if key not in STEP_KEYS}


def _place(wrong: np.ndarray) -> str:
    """The index of the first element of which it is true."""
    return f" at {np.argwhere(wrong)[0].tolist()}" if wrong.ndim else ""
