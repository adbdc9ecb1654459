"""Measures how long named sections of a role take, and which share of the time they fill."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Timer:
    """Sections may nest and run in several threads at once; each counts for itself, so shares may sum to over 1."""

    def __init__(self, time_fn: Callable[[], float] = time.perf_counter) -> None:
        self._time = time_fn
        self._lock = threading.Lock()  # guards the fields below
        self._counts: dict[str, int] = {}
        self._totals: dict[str, float] = {}
        self._since = time_fn()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        start = self._time()
        try:
            yield
        finally:
            seconds = self._time() - start
            with self._lock:
                self._counts[name] = self._counts.get(name, 0) + 1
                self._totals[name] = self._totals.get(name, 0.0) + seconds

    def stats(self) -> dict[str, float]:
        """Of the sections that ended since the last call: `name/count`, `/avg_ms`, `/total_s`, share of time `frac`."""
        with self._lock:
            now = self._time()
            elapsed, self._since = now - self._since, now
            counts, self._counts = self._counts, {}
            totals, self._totals = self._totals, {}
        stats: dict[str, float] = {}
        for name, count in counts.items():
            total = totals[name]
            stats[f"{name}/count"] = count
            stats[f"{name}/avg_ms"] = 1e3 * total / count
            stats[f"{name}/total_s"] = total
            stats[f"{name}/frac"] = total / elapsed if elapsed > 0 else 0.0
        return stats
