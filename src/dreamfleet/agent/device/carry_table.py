"""The recurrent states of all environments, kept on the device in one table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dreamfleet.agent.policy_step import Table
from dreamfleet.core.interfaces import Arrays


class CarryRows(NamedTuple):
    """The carry of a policy call: which rows of which table it steps."""

    table: DeviceCarries
    slots: np.ndarray


class DeviceCarries:
    """Has the methods of the actor's own table, but what `take` returns only names rows: the policy reads and writes
    them itself, on the device. It grows when there are more environments than it was made for.
    """

    def __init__(self, make: Callable[[int], Table], slots: int, lock: threading.Lock) -> None:
        self._make = make
        self._lock = lock  # the agent's: guards the data, which every policy call replaces
        self.data = make(slots)

    def take(self, slots: np.ndarray, size: int) -> CarryRows:
        with self._lock:
            have = len(self.data.deter)
            if size > have:
                more = self._make(max(size, 2 * have) - have)
                self.data = Table(*(jnp.concatenate([a, b]) for a, b in zip(self.data, more, strict=True)))
        return CarryRows(self, np.asarray(slots, np.int32))

    def put(self, slots: np.ndarray, rows: CarryRows) -> None:
        """The policy has done it already. A row that was given to another environment meanwhile begins with a reset."""

    def save(self) -> Arrays:
        """Copies: the next policy call writes into the table's own memory."""
        with self._lock:
            return {name: np.array(part) for name, part in self.data._asdict().items()}

    def load(self, data: Mapping[str, np.ndarray]) -> None:
        with self._lock:
            parts = self.data._asdict().items()
            self.data = Table(*(jax.device_put(np.asarray(data[name], old.dtype), old.sharding) for name, old in parts))
