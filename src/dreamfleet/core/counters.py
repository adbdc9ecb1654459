"""Counts events by name, and how many of them happen per second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Counters:
    """May be used from any thread."""

    def __init__(self, time_fn: Callable[[], float] = time.monotonic) -> None:
        self._time = time_fn
        self._lock = threading.Lock()  # guards the fields below
        self._totals: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # the totals at the last call of `rates`
        self._since = time_fn()

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._totals[name] = self._totals.get(name, 0) + amount

    def total(self, name: str) -> float:
        """The count so far; 0 of a name that never occurred."""
        with self._lock:
            return self._totals.get(name, 0)

    def totals(self) -> dict[str, float]:
        with self._lock:
            return dict(self._totals)

    def rates(self) -> dict[str, float]:
        """Per second since the last call, for every name counted so far: one that fell silent shows as 0."""
        with self._lock:
            now = self._time()
            elapsed = now - self._since
            if elapsed <= 0:
                return dict.fromkeys(self._totals, 0.0)
            rates = {name: (total - self._seen.get(name, 0)) / elapsed for name, total in self._totals.items()}
            self._seen, self._since = dict(self._totals), now
            return rates
