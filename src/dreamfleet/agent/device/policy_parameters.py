"""The parameters that acting uses: those of the last update that is computed."""

from __future__ import annotations

from typing import Any

import jax

from dreamfleet.agent.device.pack import WordPacking
from dreamfleet.agent.device.placement import DeviceLayout
from dreamfleet.agent.policy_step import Actor, publish
from dreamfleet.model.dreamer_model import DreamerModel


class PolicyParameters:
    """Every update makes a copy of what acting needs. Until it is computed, acting goes on with the one before.

    Where acting has a device or a client of its own, the copy is packed into one array. Not safe for threads.
    """

    def __init__(self, world: DreamerModel, dtype: Any, layout: DeviceLayout) -> None:
        """`world` has shapes only."""
        self._dtype = dtype
        self._layout = layout
        self._now: list[jax.Array] = []
        self._next: list[Any] = []
        spec, self._structure = jax.tree.flatten(jax.eval_shape(lambda world: publish(world, dtype), world))
        self._packing = WordPacking(spec)
        there = jax.sharding.SingleDeviceSharding(layout.policy)
        leaves = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=there) for leaf in spec]
        self.spec = leaves if layout.same_device else [self._packing.spec(layout.policy)]  # of what `current` returns

    def copy(self, world: DreamerModel) -> list[jax.Array]:
        """A part of an update."""
        leaves = jax.tree.leaves(publish(world, self._dtype))
        return leaves if self._layout.same_device else [self._packing.pack(leaves)]

    def actor(self, arrays: list[jax.Array]) -> Actor:
        """A part of a policy call: the networks, from what `current` has returned."""
        leaves = arrays if self._layout.same_device else self._packing.unpack(arrays[0])
        actor: Actor = jax.tree.unflatten(self._structure, leaves)
        return actor

    def stage(self, copy: list[jax.Array]) -> None:
        """Use this copy for acting once it is computed."""
        self._next = copy

    def activate(self, copy: list[jax.Array]) -> None:
        """Use this copy for acting from now on."""
        self._next = []
        self._now = copy if self._layout.same_device else [self._layout.to_policy(copy[0])]

    def flush(self) -> None:
        """Activate the staged copy, computed or not."""
        if self._next:
            self.activate(self._next)

    def current(self) -> list[jax.Array]:
        if self._next and self._next[0].is_ready():
            self.activate(self._next)
        return self._now
