"""Names what a thread waits for, so that the status can say it while it happens and the metrics how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Waits:
    """Used as `with waits("replay to sample"): ...` around a blocking call. Threads may wait at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both tables
        self._open: dict[tuple[int, str], float] = {}
        self._total_s: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        key = (threading.get_ident(), name)
        start = time.monotonic()
        with self._lock:
            self._open[key] = start
        try:
            yield
        finally:
            with self._lock:
                del self._open[key]
                self._total_s[name] = self._total_s.get(name, 0.0) + time.monotonic() - start

    def current(self) -> dict[str, float]:
        """What is being waited for right now, and for how many seconds so far."""
        now = time.monotonic()
        with self._lock:
            return {name: round(now - start, 1) for (_, name), start in self._open.items()}

    def totals(self) -> dict[str, float]:
        """Seconds waited in all, by name, waits in progress included."""
        now = time.monotonic()
        with self._lock:
            totals = dict(self._total_s)
            for (_, name), start in self._open.items():
                totals[name] = totals.get(name, 0.0) + now - start
        return totals
