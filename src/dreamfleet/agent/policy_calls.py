"""Policy calls: compiled for every size of a batch, started without waiting, and fetched when they are asked for.

What a call needs travels to the device as one array, and what it has to say comes back as one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from dreamfleet.agent.device.carry_table import DeviceCarries
from dreamfleet.agent.device.pack import Packing
from dreamfleet.agent.device.pinned_buffers import (
    IN_OWN_QUEUE,
    PinnedBuffer,
    PinnedBufferPool,
    pinned_memory,
    to_device,
)
from dreamfleet.agent.device.placement import DeviceLayout
from dreamfleet.agent.device.policy_parameters import PolicyParameters
from dreamfleet.agent.export.policy_file import keys_of_call
from dreamfleet.agent.policy_step import Table, act, make_table
from dreamfleet.agent.train_step import Recipe
from dreamfleet.core.errors import SpaceMismatch
from dreamfleet.core.interfaces import Arrays
from dreamfleet.model.dreamer_model import DreamerModel
from dreamfleet.model.spaces import width

SLOTS, SEEDS = "(slots)", "(seeds)"  # sent beside the observations, whose names are words
Fetch = Callable[[], tuple[Arrays, Arrays]]  # actions and latents


class Compiled(NamedTuple):
    function: Any
    sent: Packing
    buffers: PinnedBufferPool
    returned: Packing


class PolicyCalls:
    """Several threads may act at a time."""

    def __init__(
        self,
        recipe: Recipe,
        world: DreamerModel,
        layout: DeviceLayout,
        rng: str,
        seed: int,
        compile_now: Callable[..., Any],
    ) -> None:
        self.acted = 0
        self.parameters = PolicyParameters(world, recipe.settings.dtype, layout)
        self.lock = threading.Lock()  # guards the tables, acted and the parameters
        self._recipe = recipe
        self._device = layout.policy
        self._pinned = pinned_memory(layout.policy)
        self._rng = rng
        self._seed = seed
        self._key_words = jax.random.key_data(jax.random.key(0, impl=rng)).shape[-1]
        self._compile_now = compile_now
        self._compiled: dict[tuple[int, int, bool], Compiled] = {}

    def make_table(self, slots: int) -> DeviceCarries:
        return DeviceCarries(self._table, slots, self.lock)

    def start(self, table: DeviceCarries, slots: np.ndarray, obs: Mapping[str, np.ndarray], best: bool) -> Fetch:
        rows = len(slots)
        with self.lock:
            self.acted += 1
            compiled = self.prepare(rows, len(table.data.deter), best)
            buffer = compiled.buffers.take()
            seeds = keys_of_call(self._seed, self.acted, self._key_words)
            compiled.sent.pack_on_host({**obs, SLOTS: slots, SEEDS: seeds}, buffer.bytes)
            parameters = self.parameters.current()
            table.data, packed = compiled.function(parameters, table.data, buffer.array)
        # The parameters may be another client's memory, which does not know that this one still reads them.
        return lambda: self._fetch(compiled, packed, buffer, parameters)

    def prepare(self, rows: int, slots: int, best: bool) -> Compiled:
        """At the start for every size of a batch; again only when the table has grown."""
        found = self._compiled.get((rows, slots, best))
        if found is None:
            found = self._compiled[rows, slots, best] = self._compile(rows, slots, best)
        return found

    def _fetch(self, compiled: Compiled, packed: jax.Array, buffer: PinnedBuffer, read: Any) -> tuple[Arrays, Arrays]:
        """`read` is what the call reads, kept until it is over."""
        found = compiled.returned.unpack_on_host(np.asarray(packed))
        compiled.buffers.give_back(buffer)
        actions = {key: found[key] for key in self._recipe.act_space}
        for key, value in actions.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise SpaceMismatch(f"the policy chose a {key!r} that is not finite: its parameters are damaged")
        return actions, {key: value for key, value in found.items() if key not in actions}

    def _table(self, slots: int) -> Table:
        actions = sum(width(space) for space in self._recipe.act_space.values())
        table = make_table(slots, self._recipe.options.dyn, actions, self._recipe.settings.dtype)
        return jax.device_put(table, self._device)

    def _compile(self, rows: int, slots: int, best: bool) -> Compiled:
        dtype = self._recipe.settings.dtype
        spaces = self._recipe.obs_space.items()
        spec = {key: jax.ShapeDtypeStruct((rows, *space.shape), space.dtype) for key, space in spaces}
        spec["is_first"] = jax.ShapeDtypeStruct((rows,), np.bool_)
        spec[SLOTS] = jax.ShapeDtypeStruct((rows,), np.int32)
        spec[SEEDS] = jax.ShapeDtypeStruct((2, self._key_words), np.uint32)
        sent = Packing(spec)

        def step(parameters: Any, table: Any, arrays: dict[str, Any]) -> Any:
            obs = dict(arrays)
            index, keys = obs.pop(SLOTS), jax.random.wrap_key_data(obs.pop(SEEDS), impl=self._rng)
            return act(self.parameters.actor(parameters), table, index, obs, keys, best, dtype)

        there, pinned = SingleDeviceSharding(self._device), self._pinned
        buffers = PinnedBufferPool(sent.size, pinned)
        table = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), jax.eval_shape(lambda: self._table(slots))
        )
        _, actions, latents = jax.eval_shape(step, self.parameters.spec, table, spec)
        returned = Packing({**actions, **latents})

        def run(parameters: Any, table: Any, packed: Any) -> Any:
            packed = to_device(packed) if pinned else packed
            table, actions, latents = step(parameters, table, sent.unpack(packed))
            return table, returned.pack({**actions, **latents})

        name = f"policy for {rows}" + (" (best)" if best else "")
        options = {"donate_argnums": (1,), "out_shardings": (there, pinned or there)}
        queue = {"compiler_options": IN_OWN_QUEUE} if pinned else {}
        function = self._compile_now(name, run, self.parameters.spec, table, buffers.spec, **options, **queue)
        return Compiled(function, sent, buffers, returned)
