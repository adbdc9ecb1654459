"""Section times of a server, from the totals that it counts anyway."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping


class SectionTotals:
    """Turns totals since the start into the figures that `core.timer.Timer` gives, without a timer in the hot path."""

    def __init__(self, time_fn: Callable[[], float] = time.perf_counter) -> None:
        self._time = time_fn
        self._since = time_fn()
        self._before: dict[str, tuple[float, float]] = {}

    def stats(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Takes per section how often it ran and for how many seconds; returns what came since the last call."""
        now = self._time()
        elapsed, self._since = now - self._since, now
        stats: dict[str, float] = {}
        for name, (count, seconds) in totals.items():
            count_before, seconds_before = self._before.get(name, (0, 0.0))
            stats.update(section(name, count - count_before, seconds - seconds_before, elapsed))
        self._before = dict(totals)
        return stats


def section(name: str, count: float, seconds: float, elapsed: float) -> dict[str, float]:
    """The figures of one section; none if it did not run."""
    if count <= 0:
        return {}
    return {
        f"{name}/count": count,
        f"{name}/avg_ms": 1e3 * seconds / count,
        f"{name}/total_s": seconds,
        f"{name}/frac": seconds / elapsed if elapsed > 0 else 0.0,
    }


def server_totals(stats: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Per method of a `transport.server.Server`, from its `stats()`."""
    methods = [key.removesuffix("/busy_s") for key in stats if key.endswith("/busy_s")]
    return {method: (stats[f"{method}/requests"], stats[f"{method}/busy_s"]) for method in methods}
