"""Schedules by wall-clock time: one for a single process, one that every learner replica answers alike.

An interval of 0 means never and a negative one always. A positive interval fires for the first time once that many
seconds have passed since the clock was made, then each time as many have passed since it last fired: a long pause is
followed by one firing, not by a burst that catches up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from dreamfleet.core.errors import DeadlineExceeded, DreamfleetError, Stopped

TimeFn = Callable[[], float]


class LocalClock:
    """`clock()` is true when its interval has passed."""

    def __init__(self, every: float, time_fn: TimeFn = time.monotonic) -> None:
        self.every = every
        self._time = time_fn
        self._due = time_fn() + every

    def __call__(self) -> bool:
        if self.every <= 0:
            return self.every < 0
        now = self._time()
        if now < self._due:
            return False
        self._due = now + self.every
        return True


class Decisions(Protocol):
    """Where a replica reads what replica 0 decided: the board itself, or its remote side."""

    def decided(self, name: str, index: int, timeout_s: float) -> tuple[int, list[int]]: ...


class ClockBoard:
    """Replica 0's decisions by clock name, for the other replicas to read. May be used from any thread.

    Of each clock it keeps the number of calls decided and the last `history` calls that fired, so that its memory does
    not grow with the length of a run. A reader further behind than that gets an error instead of a wrong answer.
    """

    def __init__(self, history: int = 4096) -> None:
        self._history = history
        self._changed = threading.Condition()  # guards every field below
        self._tracks: dict[str, _Track] = {}
        self._closed = False

    def record(self, name: str, fired: bool) -> None:
        """Appends the decision of the clock's next call."""
        with self._changed:
            self._tracks.setdefault(name, _Track()).append(fired, self._history)
            self._changed.notify_all()

    def decided(self, name: str, index: int, timeout_s: float) -> tuple[int, list[int]]:
        """Waits until call `index` is decided; returns how many calls are, and which from `index` on fired."""
        with self._changed:
            # A name is never added here: a reader must not be able to make the board grow.
            if not self._changed.wait_for(lambda: self._closed or self._count(name) > index, timeout_s):
                raise DeadlineExceeded(f"clock '{name}': replica 0 did not decide call {index} within {timeout_s:g} s")
            if self._count(name) <= index:
                raise Stopped(f"clock '{name}': replica 0 ended before it decided call {index}")
            return self._tracks[name].since(name, index)

    def close(self) -> None:
        """Ends every wait with `Stopped`: nothing more will be decided."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _count(self, name: str) -> int:
        return self._tracks[name].count if name in self._tracks else 0


class _Track:
    """One clock's decisions: the calls that fired, of those from `complete_from` on."""

    def __init__(self) -> None:
        self.count = 0
        self.complete_from = 0
        self.fired: deque[int] = deque()

    def append(self, fired: bool, history: int) -> None:
        if fired:
            self.fired.append(self.count)
        self.count += 1
        if len(self.fired) > history:
            self.complete_from = self.fired.popleft() + 1

    def since(self, name: str, index: int) -> tuple[int, list[int]]:
        if index < self.complete_from:
            raise DreamfleetError(
                f"clock '{name}': call {index} is forgotten, only calls from {self.complete_from} of {self.count} "
                "are kept: this replica has fallen too far behind replica 0"
            )
        return self.count, [call for call in self.fired if call >= index]


class GlobalClock:
    """A clock whose n-th call gives the same answer on every replica.

    Replica 0 decides each call by its own time and records it on the board. Another replica reads the decision of its
    n-th call from there, and waits if replica 0 has not come that far; what it read ahead answers its following calls
    without asking again. Every replica passes the same `name` and `every`, so never and always need no board, nor does
    a single replica, where this is exactly a `LocalClock`. A clock belongs to one thread.
    """

    def __init__(
        self,
        every: float,
        name: str,
        replica: int = 0,
        replicas: int = 1,
        board: Decisions | None = None,
        *,
        timeout_s: float = 300.0,
        time_fn: TimeFn = time.monotonic,
    ) -> None:
        if not 0 <= replica < replicas:
            raise ValueError(f"clock '{name}': replica {replica} is not one of {replicas}")
        self.name = name
        self._local = LocalClock(every, time_fn)
        self._alone = replicas == 1 or every <= 0
        self._board = board
        self._own = board if replica == 0 and isinstance(board, ClockBoard) else None
        if not self._alone and (board is None or (replica == 0 and self._own is None)):
            kind = "the ClockBoard itself" if replica == 0 else "replica 0's board"
            raise ValueError(f"clock '{name}': replica {replica} of {replicas} needs {kind}")
        self._timeout_s = timeout_s
        self._calls = 0
        self._known = 0  # calls below this are decided, and those of them that fired and are still to come are:
        self._fired: set[int] = set()

    def __call__(self) -> bool:
        if self._alone:
            return self._local()
        if self._own is not None:
            fired = self._local()
            self._own.record(self.name, fired)
            return fired
        return self._follow()

    def _follow(self) -> bool:
        index = self._calls
        if index >= self._known:
            assert self._board is not None
            self._known, fired = self._board.decided(self.name, index, self._timeout_s)
            self._fired = set(fired)
        # Counted only now: a call whose wait failed is asked for again by the next one.
        self._calls += 1
        return index in self._fired
