"""How the arrays that training changes lie on the devices: large ones by themselves, the small ones together.

An update that is handed hundreds of arrays and returns as many keeps the interpreter busy for milliseconds, in which no
environment is answered. Most of them are small, and joining those takes the device next to no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.agent.device.placement import DeviceLayout

LARGE = 2**18  # elements; joining fewer costs less than one array more


class PackedState:
    """Between updates, small arrays that are whole on every device are one array for each type."""

    def __init__(self, spec: Sequence[jax.ShapeDtypeStruct], layout: DeviceLayout) -> None:
        self._shapes = [leaf.shape for leaf in spec]
        shardings = layout.of_state(spec)
        small = [
            math.prod(leaf.shape) < LARGE and there == layout.whole for leaf, there in zip(spec, shardings, strict=True)
        ]
        self._alone = [number for number, joined in enumerate(small) if not joined]
        types = sorted({np.dtype(leaf.dtype) for leaf, joined in zip(spec, small, strict=True) if joined}, key=str)
        self._joined = [
            [number for number, joined in enumerate(small) if joined and spec[number].dtype == dtype] for dtype in types
        ]
        self.shardings = [layout.whole for _ in types] + [shardings[number] for number in self._alone]

    def pack(self, leaves: Sequence[jax.Array]) -> list[jax.Array]:
        """A part of an update, as is `unpack`."""
        joined = [jnp.concatenate([leaves[number].ravel() for number in numbers]) for numbers in self._joined]
        return joined + [leaves[number] for number in self._alone]

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        found: dict[int, Any] = dict(zip(self._alone, packed[len(self._joined) :], strict=True))
        for numbers, array in zip(self._joined, packed, strict=False):
            ends = accumulate((math.prod(self._shapes[number]) for number in numbers), initial=0)
            for number, (begin, end) in zip(numbers, pairwise(ends), strict=True):
                found[number] = array[begin:end].reshape(self._shapes[number])
        return [found[number] for number in range(len(self._shapes))]

    def fetch(self, packed: Sequence[jax.Array]) -> list[np.ndarray]:
        """To the host, each array by itself."""
        arrays: list[np.ndarray] = self.unpack(jax.device_get(list(packed)))
        return arrays

    def put(self, arrays: Sequence[np.ndarray]) -> list[jax.Array]:
        joined = [np.concatenate([arrays[number].ravel() for number in numbers]) for numbers in self._joined]
        alone = [arrays[number] for number in self._alone]
        packed: list[jax.Array] = jax.device_put(joined + alone, self.shardings)
        return packed
