"""Host memory in which a policy call finds its observations."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding

PINNED = "pinned_host"
PATTERN = np.arange(1, 65, dtype=np.uint8)
# Options for compiling what reads or writes such memory and must not wait for updates: it copies in its own queue. XLA
# would copy beside it, in a queue out of a pool that all clients of the process share, and one that an update has given
# back may still hold a copy that waits for the end of that update.
IN_OWN_QUEUE = {"xla_disable_hlo_passes": "host-memory-transfer-asyncifier"}
BESIDE = "copy-start"  # what a copy beside a compiled function is called in its text


class PinnedBuffer(NamedTuple):
    array: jax.Array | np.ndarray  # what the compiled function is given
    bytes: np.ndarray  # the same memory, to write to


class PinnedBufferPool:
    """A GPU reads pinned memory by itself, which takes less time than to send it an array. Such memory is kept and used
    again, once the call that read it has answered; JAX's arrays may not change, but nothing else looks at these.
    """

    def __init__(self, size: int, pinned: SingleDeviceSharding | None) -> None:
        self._size = size
        self._pinned = pinned
        self._free: list[PinnedBuffer] = []

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self._size,), np.uint8, sharding=self._pinned)

    def take(self) -> PinnedBuffer:
        if self._pinned is None:
            fresh = np.empty(self._size, np.uint8)
            return PinnedBuffer(fresh, fresh)
        return self._free.pop() if self._free else self._make(self._pinned)

    def give_back(self, buffer: PinnedBuffer) -> None:
        """After the call's result was fetched."""
        if self._pinned is not None:
            self._free.append(buffer)

    def _make(self, pinned: SingleDeviceSharding) -> PinnedBuffer:
        array = jax.block_until_ready(jax.device_put(np.zeros(self._size, np.uint8), pinned))
        start = ctypes.cast(array.unsafe_buffer_pointer(), ctypes.POINTER(ctypes.c_uint8))
        return PinnedBuffer(array, np.ctypeslib.as_array(start, (self._size,)))


def pinned_memory(device: jax.Device) -> SingleDeviceSharding | None:
    """Host memory that the device reads and writes by itself, in its own queue; None where there is none."""
    if device.platform != "gpu":
        return None
    pinned = SingleDeviceSharding(device, memory_kind=PINNED)
    return pinned if is_usable(pinned, device) else None


def to_device(packed: jax.Array) -> jax.Array:
    """A part of a compiled function that is given such memory."""
    return jax.device_put(packed, jax.memory.Space.Device)


def on_host(sharding: NamedSharding) -> NamedSharding:
    """The same, but in host memory if one device can write its results there by itself: nobody has to fetch them."""
    device = sharding.mesh.devices.flat[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    # Devices of the second client belong to a platform of another name.
    possible = sharding.mesh.size == 1 and jax.default_backend() == "gpu" and PINNED in kinds
    return sharding.with_memory_kind(PINNED) if possible else sharding


def is_usable(pinned: SingleDeviceSharding, device: jax.Device) -> bool:
    """Whether the device reads, in its own queue, what was written after JAX had made an array of such memory."""
    try:
        buffers = PinnedBufferPool(len(PATTERN), pinned)
        read = jax.jit(to_device, out_shardings=SingleDeviceSharding(device), compiler_options=IN_OWN_QUEUE)
        compiled = read.lower(buffers.spec).compile()
        buffer = buffers.take()
        buffer.bytes[:] = PATTERN
        return BESIDE not in str(compiled.as_text()) and np.array_equal(compiled(buffer.array), PATTERN)
    except (RuntimeError, ValueError, TypeError):
        return False
