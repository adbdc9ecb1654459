"""Faults of the network between a fleet and the worker that joined it from a host of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from cables import AWAY_S, HALF_OPEN_S, IMPAIRMENTS, flap, hold, impair
from chaos_fleet import ChaosFleet
from namespaces import Host, Quality

GOES_ON_S = 30.0  # until the run makes progress without that worker


class NetworkFaults:
    """`faults` by name. While the worker is cut off, the run has to go on with the others; none kills a process."""

    def __init__(self, fleet: ChaosFleet, rng: random.Random) -> None:
        self._fleet, self._rng = fleet, rng
        self.faults: dict[str, Callable[[], set[int]]] = {
            **{f"network: {name}": lambda parts=parts: self._impair(*parts) for name, parts in IMPAIRMENTS.items()},  # type: ignore[misc]
            "network: flapping": self._flap,
            "network: host vanishes and returns": self._vanish,
        }

    def _impair(self, sends: Quality, receives: Quality, seconds: tuple[float, float]) -> set[int]:
        since = time.time()
        impair(self._host(), sends, receives, self._rng.uniform(*seconds))
        if seconds == HALF_OPEN_S:
            self._fleet.await_running(since, set(), GOES_ON_S)
        self._host().heal()
        return set()

    def _flap(self) -> set[int]:
        flap(self._host(), self._rng)
        return set()

    def _vanish(self) -> set[int]:
        since = time.time()
        self._fleet.vanish()
        hold(self._rng.uniform(*AWAY_S))
        self._fleet.await_running(since, set(), GOES_ON_S)
        self._fleet.come_back()
        return set()

    def _host(self) -> Host:
        assert self._fleet.elsewhere
        return self._fleet.elsewhere
