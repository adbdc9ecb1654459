"""Several arrays as one array of bytes: one way to the device and one back, where each takes longer than its bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.core.interfaces import Arrays


class Part(NamedTuple):
    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Packing:
    """Where each array lies among the bytes. Packs and unpacks on the host and, within a compiled function, there."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Of arrays, or whatever else has a shape and a dtype."""
        self.size = 0
        self._parts: dict[str, Part] = {}
        for name, array in arrays.items():
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))  # JAX has no 64 bits unless told to
            end = self.size + math.prod(array.shape) * dtype.itemsize
            self._parts[name] = Part(self.size, end, tuple(array.shape), dtype)
            self.size = end

    def spec(self, device: jax.Device) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), np.uint8, sharding=jax.sharding.SingleDeviceSharding(device))

    def pack_on_host(self, arrays: Mapping[str, np.ndarray], packed: np.ndarray | None = None) -> np.ndarray:
        packed = np.empty(self.size, np.uint8) if packed is None else packed
        for name, part in self._parts.items():
            place, array = packed[part.begin : part.end].view(part.dtype).reshape(part.shape), arrays[name]
            if array.shape != part.shape:
                raise ValueError(f"{name!r} has the shape {array.shape} instead of {part.shape}")
            np.copyto(place, array, casting="same_kind")
        return packed

    def unpack_on_host(self, packed: np.ndarray) -> Arrays:
        """Views, which last as long as the bytes."""
        parts = self._parts.items()
        return {name: packed[part.begin : part.end].view(part.dtype).reshape(part.shape) for name, part in parts}

    def pack(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.concatenate([_to_bytes(arrays[name]) for name in self._parts])

    def unpack(self, packed: jax.Array) -> dict[str, jax.Array]:
        return {name: _from_bytes(packed[part.begin : part.end], part) for name, part in self._parts.items()}


def _to_bytes(array: jax.Array) -> jax.Array:
    array = array.astype(jnp.uint8) if array.dtype == bool else array
    return jax.lax.bitcast_convert_type(array, jnp.uint8).ravel()


def _from_bytes(data: jax.Array, part: Part) -> jax.Array:
    if part.dtype == bool:
        return (data != 0).reshape(part.shape)
    size = part.dtype.itemsize
    whole = data.reshape(part.shape if size == 1 else (*part.shape, size))
    return jax.lax.bitcast_convert_type(whole, part.dtype)
