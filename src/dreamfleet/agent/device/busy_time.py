"""How long the training device has had work, and how long it has had none."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class DeviceTime:
    """Adds up the seconds with and without dispatched work, from the first work on.

    Work is dispatched asynchronously and computed in order. A thread waits for each result, so the thread that
    dispatches never does, and a result that has to wait for the one before it is not counted twice.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._lock = threading.Lock()  # guards what follows
        self._open: deque[float] = deque()  # when the work that has not ended was dispatched
        self._ended: float | None = None  # when the last work ended
        self._busy_s = 0.0
        self._idle_s = 0.0
        self._pool = ThreadPoolExecutor(1, "device time")  # its thread ends with this object

    def dispatched(self, at: float, result: Any) -> None:
        """Count the work behind `result`, an array, as dispatched at the time `at` of `now`."""
        with self._lock:
            self._open.append(at)
        self._pool.submit(self._wait, result)

    def totals(self) -> dict[str, float]:
        """Return the seconds with work (`busy`) and without (`idle`) so far; both are 0 before the first work."""
        with self._lock:
            return dict(zip(("busy", "idle"), self._until(self.now()), strict=True))

    def _wait(self, result: Any) -> None:
        try:
            result.block_until_ready()
        finally:  # an error of the device is the business of whoever uses the result
            with self._lock:
                now = self.now()
                self._busy_s, self._idle_s = self._until(now)
                self._ended = now
                self._open.popleft()

    def _until(self, now: float) -> tuple[float, float]:
        busy_s, idle_s = self._busy_s, self._idle_s
        if not self._open:
            return busy_s, idle_s + (0.0 if self._ended is None else now - self._ended)
        begun = self._open[0] if self._ended is None else max(self._open[0], self._ended)
        return busy_s + now - begun, idle_s + (0.0 if self._ended is None else begun - self._ended)
