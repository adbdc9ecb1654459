"""Crafter's worlds in a tenth of the time: the noise that one is made of is computed at once, not point by point.

A world takes some 27,000 values of a noise, each computed in Python, nearly always at the same points. Which corners of
the noise's lattice a point gets its value from, and how far away they are, does not depend on the world's seed. It is
learned once, by watching the library; what is left for another seed is one pass over all points. The values are the
same to the bit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

Point = tuple[float, float, float]


class Points:
    """All points that were asked for so far. The library computes a value the first time and is watched doing so."""

    def __init__(self, noise3: FunctionType, extrapolate3: Any, gradients: np.ndarray, scale: float) -> None:
        self.numbers: dict[Point, int] = {}
        self._corners = np.zeros((4, 0), np.int64)  # the number of the point, and the corner's coordinates
        self._away = np.zeros((3, 0))  # how far the point is from the corner
        self._share = np.zeros(0)  # how much the corner counts
        self._new: list[tuple[float, ...]] = []  # corners, coordinates and distances, not among those above yet
        self._extrapolate3 = extrapolate3
        self._noise3 = FunctionType(noise3.__code__, {**noise3.__globals__, extrapolate3.__name__: self._watch})
        self._gradients = gradients
        self._scale = scale

    def learn(self, point: Point, perm: np.ndarray, perm_gradient: np.ndarray) -> float:
        self.numbers[point] = len(self.numbers)
        return float(self._noise3(*point, perm, perm_gradient))

    def values(self, perm: np.ndarray, perm_gradient: np.ndarray) -> list[float]:
        """Of all points, in the order of their numbers."""
        if not self.numbers:
            return []
        self._take_in_new()
        number, x, y, z = self._corners
        index = perm_gradient[(perm[(perm[x] + y) & 255] + z) & 255]
        dx, dy, dz = self._away
        gradients = self._gradients
        # Added up as the library does, for the same roundings.
        along = gradients[index] * dx + gradients[index + 1] * dy + gradients[index + 2] * dz
        found = np.bincount(number, self._share * along, len(self.numbers)) / self._scale
        return list(found.tolist())

    def _watch(self, perm: Any, perm_gradient: Any, x: int, y: int, z: int, *away: float) -> float:
        """Stands in for the library's function that a corner's contribution comes from."""
        self._new.append((len(self.numbers) - 1, x & 255, y & 255, z & 255, *away))
        return float(self._extrapolate3(perm, perm_gradient, x, y, z, *away))

    def _take_in_new(self) -> None:
        if not self._new:
            return
        new = np.array(self._new).T
        self._new = []
        dx, dy, dz = new[4:]
        share = 2 - dx * dx - dy * dy - dz * dz
        share *= share
        self._corners = np.concatenate([self._corners, new[:4].astype(np.int64)], 1)
        self._away = np.concatenate([self._away, new[4:]], 1)
        self._share = np.concatenate([self._share, share * share])


class Noise:
    """Looks to Crafter like the library's own, of one seed."""

    def __init__(self, points: Points, own: Any) -> None:
        self._points = points
        self._perm = own._perm, own._perm_grad_index3
        self._values = points.values(*self._perm)

    def noise3(self, x: float, y: float, z: float) -> float:
        number = self._points.numbers.get((x, y, z))
        if number is None:
            self._values.append(self._points.learn((x, y, z), *self._perm))
            return self._values[-1]
        return self._values[number]


@cache
def quick_worlds() -> QuickWorlds:
    """One for all environments of a process: they ask for the same points."""
    return QuickWorlds()


class QuickWorlds:
    """With a library of noise that is not as expected, worlds are made as Crafter makes them."""

    def __init__(self) -> None:
        from crafter import worldgen

        self._module: Any = worldgen
        self._lock = threading.Lock()  # one world at a time: the module is changed meanwhile, and points are learned
        self._points: Points | None = None
        try:
            from opensimplex.constants import GRADIENTS3, NORM_CONSTANT3
            from opensimplex.internals import _extrapolate3, _noise3
        except ImportError:
            return
        noise3, extrapolate3 = (getattr(function, "py_func", function) for function in (_noise3, _extrapolate3))
        self._points = Points(noise3, extrapolate3, GRADIENTS3, NORM_CONSTANT3)  # numba's have one in Python as well

    @contextmanager
    def used(self) -> Iterator[None]:
        if self._points is None:
            yield
            return
        with self._lock:
            points, library = self._points, self._module.opensimplex
            quick = SimpleNamespace(OpenSimplex=lambda seed: Noise(points, library.OpenSimplex(seed)))
            self._module.opensimplex = quick
            try:
                yield
            finally:
                self._module.opensimplex = library
