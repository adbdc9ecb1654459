"""How a batch of steps travels to the devices: large arrays by themselves, the small ones together as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.agent.device.pack import Packing
from dreamfleet.agent.device.placement import DeviceLayout
from dreamfleet.agent.train_step import Recipe
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.spaces import EPISODE_FLAGS, REWARD, Space

LARGE = 2**18  # bytes; copying fewer on the host takes less time than sending one more array
SMALL = "(small)"  # the array of the small ones


class DeviceBatch(NamedTuple):
    """A batch on its way to the device; what names its steps stays behind."""

    data: dict[str, jax.Array]
    stepid: np.ndarray
    form: BatchForm

    def arrays(self) -> Arrays:
        return self.form.fetch(self.data)


class BatchForm:
    """Of batches of one size. A batch that is split over devices is not packed: its parts must have a batch axis."""

    def __init__(self, size: int, length: int, recipe: Recipe, layout: DeviceLayout) -> None:
        """`length` is without the context."""
        spec = batch_arrays(size, length, recipe)
        small = {
            key: array
            for key, array in spec.items()
            if layout.mesh.size == 1 and math.prod(array.shape) * array.dtype.itemsize < LARGE
        }
        self._large = [key for key in spec if key not in small]
        self._packing = Packing(small)
        self._sharding = layout.batch
        sent = {key: spec[key] for key in self._large}
        if small:
            sent[SMALL] = jax.ShapeDtypeStruct((self._packing.size,), np.uint8)
        self.spec = {
            key: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=layout.batch) for key, array in sent.items()
        }

    def put(self, batch: Mapping[str, np.ndarray]) -> DeviceBatch:
        data = {key: batch[key] for key in self._large}
        if SMALL in self.spec:
            data[SMALL] = self._packing.pack_on_host(batch)
        return DeviceBatch(jax.device_put(data, self._sharding), batch["stepid"], self)

    def unpack(self, data: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """A part of an update."""
        large = {key: data[key] for key in self._large}
        return {**large, **self._packing.unpack(data[SMALL])} if SMALL in data else large

    def fetch(self, data: Mapping[str, jax.Array]) -> Arrays:
        large = {key: np.asarray(data[key]) for key in self._large}
        return {**large, **self._packing.unpack_on_host(np.asarray(data[SMALL]))} if SMALL in data else large


def batch_arrays(size: int, length: int, recipe: Recipe) -> dict[str, jax.ShapeDtypeStruct]:
    lead, context, dyn = (size, length + recipe.context), (size, recipe.context), recipe.options.dyn
    spaces = {**recipe.obs_space, **recipe.act_space, REWARD: Space(np.float32)}
    spaces |= dict.fromkeys(EPISODE_FLAGS, Space(bool))
    spec: dict[str, tuple[tuple[int, ...], Any]] = {
        key: ((*lead, *space.shape), space.dtype) for key, space in spaces.items()
    }
    if recipe.context:
        spec["dyn/deter"] = ((*context, dyn.deter), jnp.bfloat16)
        spec["dyn/stoch"] = ((*context, dyn.stoch), np.uint8)
    spec["consec"] = ((size,), np.int32)
    return {key: jax.ShapeDtypeStruct(*value) for key, value in spec.items()}
