"""The order and the time limits in which a fleet ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

# The rest of the time is for killing, reaping and cleaning up.
ASKING_SHARE = 0.9


class Stoppable(Protocol):
    alive: bool

    @property
    def stop_rank(self) -> int: ...

    def request_stop(self) -> None: ...


R = TypeVar("R", bound=Stoppable)


class StopSequence(Generic[R]):
    """Asks the roles of the lowest rank to stop, those of the next rank when they are gone, and so on.

    Producers end before what they feed, so that nothing waits for a peer that left. Every rank gets an equal share of
    the time that is left when its turn comes; the roles that outlast it are handed to the caller to be killed.
    """

    def __init__(self, roles: Iterable[R], timeout_s: float, now: float) -> None:
        roles = [role for role in roles if role.alive]
        ranks = sorted({role.stop_rank for role in roles})
        self._waiting = [[role for role in roles if role.stop_rank == rank] for rank in ranks]
        self._asked: list[R] = []
        self._late: list[R] = []
        self._ask_until = now + ASKING_SHARE * timeout_s
        self._rank_until = now
        self.give_up_at = now + timeout_s

    def advance(self, now: float) -> list[R]:
        """Moves on as far as the roles' ends and the time allow; returns who is still there after its time."""
        while True:
            self._asked = [role for role in self._asked if role.alive]
            if now >= self._rank_until:
                self._late += self._asked
                self._asked = []
            if self._asked or not self._waiting:
                return [role for role in self._late if role.alive]
            self._rank_until = now + max(0.0, self._ask_until - now) / len(self._waiting)
            self._asked = self._waiting.pop(0)
            for role in self._asked:
                role.request_stop()

    def deadline(self) -> float:
        """When `advance` is due at the latest."""
        return self._rank_until if self._asked else self.give_up_at
