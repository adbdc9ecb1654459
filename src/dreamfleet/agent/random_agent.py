"""The agent that acts at random and learns nothing: a baseline, and a way to try a fleet without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dreamfleet.core.encoding.packed_json import pack_json, unpack_json
from dreamfleet.core.interfaces import Arrays, Carry
from dreamfleet.core.spaces import Space


class RandomAgent:
    def __init__(
        self, act_space: Mapping[str, Space], seed: int = 0, row_space: Mapping[str, Space] | None = None
    ) -> None:
        if row_space is not None:
            self.row_space = dict(row_space)
        self._act_space = {key: space for key, space in act_space.items() if key != "reset"}
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()  # guards the generator: several actor threads may draw
        self._updates = 0

    def init_policy(self, n: int) -> Carry:
        return {}

    def policy(self, carry: Carry, obs: Arrays, mode: str) -> tuple[Carry, Arrays, Arrays]:
        rows = len(obs["is_first"])
        with self._lock:
            actions = {key: space.sample(self._rng, (rows,)) for key, space in self._act_space.items()}
        return carry, actions, {}

    def init_train(self, n: int) -> Carry:
        return {}

    def train(self, carry: Carry, batch: Arrays) -> tuple[Carry, dict[str, Any], Mapping[str, Any]]:
        self._updates += 1
        return carry, {}, {"updates": self._updates, "reward": batch["reward"].mean()}

    def init_report(self, n: int) -> Carry:
        return {}

    def report(self, carry: Carry, batch: Arrays) -> tuple[Carry, Mapping[str, Any]]:
        return carry, {"reward": batch["reward"].mean()}

    def stream(self, source: Iterator[Arrays]) -> Iterator[Arrays]:
        return source

    def save(self) -> Arrays:
        with self._lock:
            generator = pack_json(self._rng.bit_generator.state)
        return {"updates": np.array(self._updates, np.int64), "generator": generator}

    def load(self, data: Mapping[str, np.ndarray], regex: str | None = None) -> None:
        self._updates = int(data["updates"])
        if "generator" in data:  # not in snapshots of earlier versions
            with self._lock:
                self._rng.bit_generator.state = unpack_json(data["generator"])
