"""Which devices train and act, and how parameters and batches are laid out over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dreamfleet.agent.device.learner_client import in_second_client
from dreamfleet.core.errors import ConfigError

AXIS = "data"
SMALL = 2**16  # a parameter of fewer elements is kept whole on every device


@dataclass(frozen=True)
class DeviceOptions:
    train_devices: tuple[int, ...] = (0,)
    policy_devices: tuple[int, ...] = (0,)
    fsdp: bool = False
    concurrent: bool = True  # act while an update is computed, if there is a second client to train with


class DeviceLayout:
    """Batches are split over the training devices. Parameters are whole on each of them or, with `fsdp`, split too."""

    def __init__(self, options: DeviceOptions, batch_size: int) -> None:
        train = pick_devices("jax.train_devices", options.train_devices)
        if batch_size % len(train):
            raise ConfigError(
                f"batch_size={batch_size} cannot be split over the {len(train)} devices of jax.train_devices: "
                f"choose a multiple of {len(train)}"
            )
        if len(options.policy_devices) > 1:
            raise ConfigError(f"jax.policy_devices={list(options.policy_devices)}: acting takes one device, name one")
        self.policy = pick_devices("jax.policy_devices", options.policy_devices)[0]
        beside = in_second_client(self.policy) if options.concurrent and train == [self.policy] else None
        self.concurrent = beside is not None
        self.same_device = train == [self.policy] and not self.concurrent
        if self.concurrent:
            train = [beside]
        self.mesh = Mesh(np.asarray(train), (AXIS,))
        self._fsdp = options.fsdp and len(train) > 1
        self.batch = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.whole = NamedSharding(self.mesh, PartitionSpec())

    def describe(self) -> str:
        """The devices in words: "NVIDIA H200 0, 1 (acting on NVIDIA H200 0)"."""
        train = list(self.mesh.devices.flat)
        words = f"{train[0].device_kind} {', '.join(str(device.id) for device in train)}"
        if self.concurrent:
            return f"{words} (acting beside updates)"
        return words if self.same_device else f"{words} (acting on {self.policy.device_kind} {self.policy.id})"

    def to_policy(self, array: jax.Array) -> jax.Array:
        """The array for the device or client that acts; one that is computed."""
        return jax.dlpack.from_dlpack(array) if self.concurrent else jax.device_put(array, self.policy)

    def of_state(self, leaves: Sequence[Any]) -> list[NamedSharding]:
        return [self._of_leaf(leaf.shape) for leaf in leaves]

    def _of_leaf(self, shape: tuple[int, ...]) -> NamedSharding:
        count = self.mesh.size
        splittable = [axis for axis, size in enumerate(shape) if size % count == 0]
        if not self._fsdp or np.prod(shape) < SMALL or not splittable:
            return self.whole
        longest = max(splittable, key=lambda axis: shape[axis])
        return NamedSharding(self.mesh, PartitionSpec(*[None] * longest, AXIS))


def pick_devices(key: str, indices: Sequence[int]) -> list[jax.Device]:
    found = jax.local_devices()
    if not indices:
        raise ConfigError(f"{key} is empty: name at least one device, such as [0]")
    if len(set(indices)) < len(indices):
        raise ConfigError(f"{key}={list(indices)} names a device twice")
    for index in indices:
        if not 0 <= index < len(found):
            raise ConfigError(f"{key}={list(indices)}: there is no device {index}, this machine has {len(found)}")
    return [found[index] for index in indices]
