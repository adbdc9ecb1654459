"""How many failures of a role or an environment count, and how long its next restart waits."""

from __future__ import annotations

from collections import deque

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 5.0
MAX_IN_VAIN = 3  # restarts of environments that have never made a step
_MAX_DOUBLINGS = 16


def back_off_s(in_a_row: int) -> float:
    """Return the delay before a restart, which doubles from one quick failure to the next."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(max(0, in_a_row - 1), _MAX_DOUBLINGS))


class RecentFailures:
    """When and how something failed, as far as it counts against its restarts."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: deque[tuple[float, str]] = deque()

    def __len__(self) -> int:
        return len(self._failures)

    def add(self, now: float, line: str) -> None:
        self._failures.append((now, line))

    def forget_until(self, time_s: float) -> None:
        while self._failures and self._failures[0][0] <= time_s:
            self._failures.popleft()

    @property
    def first(self) -> str:
        return self._failures[0][1]

    @property
    def last(self) -> str:
        return self._failures[-1][1]
