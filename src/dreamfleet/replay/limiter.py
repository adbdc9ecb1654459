"""Rate limiter between inserts and samples. Knows counts, not data."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from dreamfleet.core.errors import DeadlineExceeded, Stopped
from dreamfleet.core.text.words import limiter_words
from dreamfleet.core.waits import LimiterState

NOTICES = 4  # within the time of a deadline: one that is late must not end a wait


class SamplesPerInsert:
    """Holds sampled windows close to `samples_per_insert` per inserted step.

    Until `min_size` inserts, inserting is free and sampling waits. A balance starts at `-min_size`; every insert that
    leaves at least `min_size` steps adds `samples_per_insert`, every sampled window takes 1. Inserting waits while the
    balance is at or above `tolerance * samples_per_insert`, sampling while it is at or below `-tolerance`. A ratio of
    zero or less switches the balance off and leaves only the minimum size. `has_windows` says whether there is anything
    to sample at all: many short streams may hold `min_size` steps and not one window. Inserting is free until there is.

    A batch is let through as one: the limiter opens for its first row and counts all of them.

    The deadline of a wait counts from the last progress, which is a step inserted or a window sampled. While it waits,
    it calls `notify` from time to time, for callers elsewhere whose own deadlines must not end it.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size: int,
        tolerance: float,
        has_windows: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samples_per_insert = float(samples_per_insert)
        self.min_size = int(min_size)
        self.tolerance = float(tolerance)
        self._has_windows = has_windows
        self._now = now
        self._changed = threading.Condition()  # guards every field below
        self._size = 0
        self._samples = 0
        self._balance = -float(min_size)
        self._closed = False
        self._progressed_at = now()
        self._notify_at = {"insert": 0.0, "sample": 0.0}  # when a wait of that kind is due to call `notify`
        self._wait_s = {"insert": 0.0, "sample": 0.0}
        self._waiting: list[tuple[str, float]] = []  # the waits in progress and when they began

    def await_insert(self, timeout_s: float, notify: Callable[[], None] | None = None) -> None:
        """Waits until inserting is allowed. The rows count once they are stored: see `inserted`."""
        with self._changed:
            self._wait_for(self._may_insert, "insert", timeout_s, notify)

    def inserted(self, rows: int) -> None:
        with self._changed:
            counted = max(0, min(rows, self._size + rows - self.min_size + 1))
            self._size += rows
            self._balance += counted * self.samples_per_insert
            self._note_progress()

    def await_sample(self, timeout_s: float, notify: Callable[[], None] | None = None) -> None:
        """Waits until sampling is allowed. The windows count once they are drawn: see `sampled`."""
        with self._changed:
            self._wait_for(self._may_sample, "sample", timeout_s, notify)

    def sampled(self, windows: int) -> None:
        with self._changed:
            self._samples += windows
            self._balance -= windows
            self._note_progress()

    def can_sample(self) -> bool:
        """Whether `sample` would not wait."""
        with self._changed:
            return self._may_sample()

    def close(self) -> None:
        """Ends every wait, now and later, with `Stopped`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def status(self) -> dict[str, Any]:
        """What the limiter waits for, also in words, and how many steps or windows before it lets a call through."""
        with self._changed:
            words = self._describe()
            return {"state": self._state(), "missing": self._missing(), "inserts": self._size, "waits_for": words}

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
            self._note_progress()

    def _note_progress(self) -> None:
        self._progressed_at = self._now()
        self._changed.notify_all()

    def _may_insert(self) -> bool:
        if self.samples_per_insert <= 0 or self._size < self.min_size or not self._has_windows():
            return True  # without a window nobody can sample, and only inserts can bring one
        return self._balance < self.tolerance * self.samples_per_insert

    def _may_sample(self) -> bool:
        if self._size < self.min_size or not self._has_windows():
            return False
        return self.samples_per_insert <= 0 or self._balance > -self.tolerance

    def _missing_steps(self) -> int:
        """As far as the counts go: there may be no window even then."""
        to_minimum = max(0, self.min_size - self._size)
        if self.samples_per_insert <= 0 or self._balance > -self.tolerance:
            return to_minimum
        counted = math.floor((-self.tolerance - self._balance) / self.samples_per_insert) + 1
        return counted + max(0, to_minimum - 1)  # the insert that reaches the minimum counts already

    def _missing_windows(self) -> int:
        if self._may_insert():
            return 0
        return math.floor(self._balance - self.tolerance * self.samples_per_insert) + 1

    def _waited_s(self, what: str) -> float:
        """Waits in progress included."""
        now = self._now()
        return self._wait_s[what] + sum(now - start for waits, start in self._waiting if waits == what)

    def _wait_for(
        self, ready: Callable[[], bool], what: str, timeout_s: float, notify: Callable[[], None] | None
    ) -> None:
        self._expect_open(what)
        if ready():
            return
        entry = what, self._now()
        self._waiting.append(entry)
        try:
            while not self._closed and not ready():
                self._wait_once(what, entry[1], timeout_s, notify)
        finally:
            self._waiting.remove(entry)
            self._wait_s[what] += self._now() - entry[1]
        self._expect_open(what)

    def _wait_once(self, what: str, start: float, timeout_s: float, notify: Callable[[], None] | None) -> None:
        now = self._now()
        deadline = max(start, self._progressed_at) + timeout_s
        if now >= deadline:
            raise DeadlineExceeded(f"replay {what} waited {timeout_s:g} s without progress: {self._describe()}")
        if notify and now >= self._notify_at[what]:
            self._notify_at[what] = now + timeout_s / NOTICES
            notify()
        self._changed.wait(min(deadline, self._notify_at[what] if notify else deadline) - now)

    def _expect_open(self, what: str) -> None:
        if self._closed:
            raise Stopped(f"replay {what} ended: the limiter is closed")

    def _missing(self) -> int:
        return self._missing_steps() or self._missing_windows()

    def _state(self) -> LimiterState:
        if self._missing_steps():
            return LimiterState.STEPS if self._samples else LimiterState.FIRST_UPDATE
        if not self._has_windows():
            return LimiterState.WINDOW
        return LimiterState.SAMPLES if self._missing_windows() else LimiterState.OPEN

    def _describe(self) -> str:
        return limiter_words(self._state(), self._missing(), self._size)
