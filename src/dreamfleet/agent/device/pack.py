"""Several arrays as one: one way to the device and one back, where each takes longer than its bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.core.interfaces import Arrays


class PackedArray(NamedTuple):
    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Packing:
    """Where each array lies among the bytes. Packs and unpacks on the host and, within a compiled function, there."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        """Of arrays, or whatever else has a shape and a dtype."""
        self.size = 0
        self._parts: dict[str, PackedArray] = {}
        for name, array in arrays.items():
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))  # JAX has no 64 bits unless told to
            end = self.size + math.prod(array.shape) * dtype.itemsize
            self._parts[name] = PackedArray(self.size, end, tuple(array.shape), dtype)
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


def _from_bytes(data: jax.Array, part: PackedArray) -> jax.Array:
    if part.dtype == bool:
        return (data != 0).reshape(part.shape)
    size = part.dtype.itemsize
    whole = data.reshape(part.shape if size == 1 else (*part.shape, size))
    return jax.lax.bitcast_convert_type(whole, part.dtype)


class WordPacking:
    """Arrays of 16 or 32 bits an element as one array of 16-bit words, within compiled functions.

    The compiler makes what is cut out of words a part of what reads it. What is cut out of bytes it copies first.
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        """Of arrays, or whatever else has a shape and a dtype."""
        self._spec = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        if odd := {str(array.dtype) for array in self._spec if array.dtype.itemsize not in (2, 4)}:
            raise TypeError(f"only elements of 16 or 32 bits can be packed into words, not {', '.join(sorted(odd))}")
        self.size = sum(math.prod(array.shape) * array.dtype.itemsize // 2 for array in self._spec)

    def spec(self, device: jax.Device) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), np.uint16, sharding=jax.sharding.SingleDeviceSharding(device))

    def pack(self, arrays: Sequence[jax.Array]) -> jax.Array:
        """All upper halves of an array of 32 bits, then all lower ones: pairs would have to be taken apart again."""
        words = []
        for array in arrays:
            if array.dtype.itemsize == 2:
                words.append(jax.lax.bitcast_convert_type(array.ravel(), jnp.uint16))
            else:
                bits = jax.lax.bitcast_convert_type(array.ravel(), jnp.uint32)
                words += [(bits >> 16).astype(jnp.uint16), bits.astype(jnp.uint16)]
        return jnp.concatenate(words)

    def unpack(self, packed: jax.Array) -> list[jax.Array]:
        arrays, begin = [], 0
        for spec in self._spec:
            middle = begin + math.prod(spec.shape)
            bits = packed[begin:middle]
            begin = middle
            if spec.dtype.itemsize == 4:
                begin += math.prod(spec.shape)
                bits = bits.astype(jnp.uint32) << 16 | packed[middle:begin].astype(jnp.uint32)
            arrays.append(jax.lax.bitcast_convert_type(bits, spec.dtype).reshape(spec.shape))
        return arrays
