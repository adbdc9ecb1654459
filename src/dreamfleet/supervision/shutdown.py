"""The order and the timeouts for stopping a fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

ASKING_SHARE = 0.9  # share of the time after a failure for stopping; the rest is for killing
REAP_S = 1.0  # minimum time for a killed role to end, while the system frees its memory


class Stoppable(Protocol):
    alive: bool

    @property
    def stop_rank(self) -> int: ...

    @property
    def saves(self) -> bool: ...

    def request_stop(self) -> None: ...


R = TypeVar("R", bound=Stoppable)


class StopSequence(Generic[R]):
    """Stop roles rank by rank, starting with the lowest. A rank is stopped once the previous one has ended.

    Producers end before their consumers, so that nothing waits for a missing peer. The caller kills roles that exceed
    their time. In a clean stop, each rank has `save_timeout_s` if one of its roles saves, and `timeout_s` otherwise.
    After a failure (`hurry`), all ranks share `timeout_s`: each rank gets an equal part of the remaining time.
    """

    def __init__(self, roles: Iterable[R], timeout_s: float, save_timeout_s: float, now: float) -> None:
        roles = [role for role in roles if role.alive]
        ranks = sorted({role.stop_rank for role in roles})
        self._waiting = [[role for role in roles if role.stop_rank == rank] for rank in ranks]
        self._asked: list[R] = []
        self._late: list[R] = []
        self._timeout_s = timeout_s
        self._save_timeout_s = save_timeout_s
        self._ask_until: float | None = None  # deadline of all ranks after a failure
        self._rank_until = now
        self.give_up_at = now

    def hurry(self, now: float) -> None:
        """Shorten the stop after a failure. Later failures do not extend the time."""
        if self._ask_until is None:
            self._ask_until = now + ASKING_SHARE * self._timeout_s
            self.give_up_at = self._ask_until + self._reap_s()
            if self._asked:
                share_s = (self._ask_until - now) / (1 + len(self._waiting))
                self._rank_until = min(self._rank_until, now + share_s)

    def advance(self, now: float) -> list[R]:
        """Proceed to the next ranks if possible. Return the roles that exceeded their time."""
        while True:
            self._asked = [role for role in self._asked if role.alive]
            if now >= self._rank_until:
                self._late += self._asked
                self._asked = []
            if self._asked or not self._waiting:
                return [role for role in self._late if role.alive]
            self._ask_next_rank(now)

    def deadline(self) -> float:
        """Return when `advance` must be called at the latest."""
        return self._rank_until if self._asked else self.give_up_at

    def _ask_next_rank(self, now: float) -> None:
        if self._ask_until is None:
            saves = any(role.saves for role in self._waiting[0])
            self._rank_until = now + (self._save_timeout_s if saves else self._timeout_s)
            self.give_up_at = self._rank_until + self._reap_s()
        else:
            self._rank_until = now + max(0.0, self._ask_until - now) / len(self._waiting)
        self._asked = self._waiting.pop(0)
        for role in self._asked:
            role.request_stop()

    def _reap_s(self) -> float:
        return max(REAP_S, (1 - ASKING_SHARE) * self._timeout_s)
