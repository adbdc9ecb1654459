"""The order and the time limits in which a fleet ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

ASKING_SHARE = 0.9  # of the time after a failure; the rest is for killing
REAP_S = 1.0  # that a killed role has to be gone, at least: the system takes its memory back first


class Stoppable(Protocol):
    alive: bool

    @property
    def stop_rank(self) -> int: ...

    @property
    def saves(self) -> bool: ...

    def request_stop(self) -> None: ...


R = TypeVar("R", bound=Stoppable)


class StopSequence(Generic[R]):
    """Asks the roles of the lowest rank to stop, those of the next rank when they are gone, and so on.

    Producers end before what they feed, so that nothing waits for a peer that left. The roles that outlast their time
    are handed to the caller to be killed. In a clean stop every rank has a time of its own: `save_timeout_s` if one of
    its roles saves, else `timeout_s`. After a failure (`hurry`) all of them together have `timeout_s`: every rank gets
    an equal share of what is left when its turn comes.
    """

    def __init__(self, roles: Iterable[R], timeout_s: float, save_timeout_s: float, now: float) -> None:
        roles = [role for role in roles if role.alive]
        ranks = sorted({role.stop_rank for role in roles})
        self._waiting = [[role for role in roles if role.stop_rank == rank] for rank in ranks]
        self._asked: list[R] = []
        self._late: list[R] = []
        self._timeout_s = timeout_s
        self._save_timeout_s = save_timeout_s
        self._ask_until: float | None = None  # for all ranks together, once there is a failure
        self._rank_until = now
        self.give_up_at = now

    def hurry(self, now: float) -> None:
        """Shortens the stop to what a failure allows. Only the first failure counts: later ones win no time."""
        if self._ask_until is None:
            self._ask_until = now + ASKING_SHARE * self._timeout_s
            self.give_up_at = self._ask_until + self._reap_s()
            if self._asked:
                share_s = (self._ask_until - now) / (1 + len(self._waiting))
                self._rank_until = min(self._rank_until, now + share_s)

    def advance(self, now: float) -> list[R]:
        """Moves on as far as the roles' ends and the time allow; returns who is still there after its time."""
        while True:
            self._asked = [role for role in self._asked if role.alive]
            if now >= self._rank_until:
                self._late += self._asked
                self._asked = []
            if self._asked or not self._waiting:
                return [role for role in self._late if role.alive]
            self._ask_next_rank(now)

    def deadline(self) -> float:
        """When `advance` is due at the latest."""
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
