"""Rate limiter between inserts and samples. Knows counts, not data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dreamfleet.core.errors import DeadlineExceeded, Stopped


class SamplesPerInsert:
    """Holds sampled windows close to `samples_per_insert` per inserted step.

    Until `min_size` inserts, inserting is free and sampling waits. A balance starts at `-min_size`; every insert that
    leaves at least `min_size` steps adds `samples_per_insert`, every sampled window takes 1. Inserting waits while the
    balance is at or above `tolerance * samples_per_insert`, sampling while it is at or below `-tolerance`. A ratio of
    zero or less switches the balance off and leaves only the minimum size. `has_windows` says whether there is anything
    to sample at all: many short streams may hold `min_size` steps and not one window. Inserting is free until there is.

    A batch is let through as one: the limiter opens for its first row and counts all of them.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size: int,
        tolerance: float,
        has_windows: Callable[[], bool] = lambda: True,
    ) -> None:
        self.samples_per_insert = float(samples_per_insert)
        self.min_size = int(min_size)
        self.tolerance = float(tolerance)
        self._has_windows = has_windows
        self._changed = threading.Condition()  # guards every field below
        self._size = 0
        self._samples = 0
        self._balance = -float(min_size)
        self._closed = False
        self._wait_s = {"insert": 0.0, "sample": 0.0}
        self._waiting: list[tuple[str, float]] = []  # the waits in progress and when they began

    def await_insert(self, timeout_s: float) -> None:
        """Waits until inserting is allowed. The rows count once they are stored: see `inserted`."""
        with self._changed:
            self._wait_for(self._may_insert, "insert", timeout_s)

    def inserted(self, rows: int) -> None:
        with self._changed:
            counted = max(0, min(rows, self._size + rows - self.min_size + 1))
            self._size += rows
            self._balance += counted * self.samples_per_insert
            self._changed.notify_all()

    def await_sample(self, timeout_s: float) -> None:
        """Waits until sampling is allowed. The windows count once they are drawn: see `sampled`."""
        with self._changed:
            self._wait_for(self._may_sample, "sample", timeout_s)

    def sampled(self, windows: int) -> None:
        with self._changed:
            self._samples += windows
            self._balance -= windows
            self._changed.notify_all()

    def can_sample(self) -> bool:
        """Whether `sample` would not wait."""
        with self._changed:
            return self._may_sample()

    def close(self) -> None:
        """Ends every wait, now and later, with `Stopped`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def describe(self) -> str:
        """What the limiter waits for, in words for the status."""
        with self._changed:
            return self._describe()

    def stats(self) -> dict[str, float]:
        with self._changed:
            return {
                "inserts": self._size,
                "samples": self._samples,
                "balance": self._balance,
                "insert_wait_s": self._waited_s("insert"),
                "sample_wait_s": self._waited_s("sample"),
            }

    def save(self) -> dict[str, float]:
        with self._changed:
            return {"size": self._size, "samples": self._samples, "balance": self._balance}

    def load(self, data: Mapping[str, Any]) -> None:
        """Takes over the counts. The ratio stays as configured, so that it may change when a run is resumed."""
        with self._changed:
            self._size = int(data["size"])
            self._samples = int(data["samples"])
            self._balance = float(data["balance"])
            self._changed.notify_all()

    def _may_insert(self) -> bool:
        if self.samples_per_insert <= 0 or self._size < self.min_size or not self._has_windows():
            return True  # without a window nobody can sample, and only inserts can bring one
        return self._balance < self.tolerance * self.samples_per_insert

    def _may_sample(self) -> bool:
        if self._size < self.min_size or not self._has_windows():
            return False
        return self.samples_per_insert <= 0 or self._balance > -self.tolerance

    def _waited_s(self, what: str) -> float:
        """Waits in progress included."""
        now = time.monotonic()
        return self._wait_s[what] + sum(now - start for waits, start in self._waiting if waits == what)

    def _wait_for(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        if self._closed:
            raise Stopped(f"replay {what} ended: the limiter is closed")
        if ready():
            return
        entry = what, time.monotonic()
        self._waiting.append(entry)
        try:
            in_time = self._changed.wait_for(lambda: self._closed or ready(), timeout_s)
        finally:
            self._waiting.remove(entry)
            self._wait_s[what] += time.monotonic() - entry[1]
        if not in_time:
            raise DeadlineExceeded(f"replay {what} waited {timeout_s:g} s: {self._describe()}")
        if self._closed:
            raise Stopped(f"replay {what} ended: the limiter is closed")

    def _describe(self) -> str:
        if self._size < self.min_size:
            return f"{self._size} of {self.min_size} steps"
        if not self._has_windows():
            return "a stream long enough for one window"
        if not self._may_sample():
            missing = (-self.tolerance - self._balance) / self.samples_per_insert
            return f"{int(missing) + 1} more steps to be inserted"
        if not self._may_insert():
            over = self._balance - self.tolerance * self.samples_per_insert
            return f"{int(over) + 1} more windows to be sampled"
        return "nothing"
