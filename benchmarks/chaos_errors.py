"""Faults that are errors in a user's own code, and deaths of roles that are about to go back to a snapshot."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable

from chaos_fleet import ChaosFleet, raising

# Who raises an error, and the role whose process ends with it: none with an environment, which its worker replaces.
ERRORS = {
    "error in train": (raising.TRAIN, "agent"),
    "error in policy": (raising.POLICY, "agent"),
    "error in report": (raising.REPORT, "agent"),
    "error in save": (raising.SAVE, "agent"),
    "error in an environment": (raising.STEP, ""),
    "error in a sink": (raising.SINK, "logger"),
    "error in sampling": (raising.SAMPLE, "agent"),
    "error in inserting": (raising.INSERT, "agent"),
}
RAISED_S = 20.0  # until a part that was asked for an error has come to it
STARTED_S = 15.0  # an error soon after its first start ends a run, and has to
AGAIN_S = (0.02, 0.3)  # after the start of a role that goes back: about when it does


class Errors:
    """`faults` by name, each returns the processes that have to be gone when the run has recovered."""

    def __init__(self, fleet: ChaosFleet, rng: random.Random) -> None:
        self._fleet, self._rng = fleet, rng
        self._numbers = itertools.count()
        self.faults: dict[str, Callable[[], set[int]]] = {
            **{name: lambda parts=parts: self._raise(*parts) for name, parts in ERRORS.items()},  # type: ignore[misc]
            "kill the agent, then the new logger": lambda: self._kill_returning("logger"),
            "kill the agent, then the new replay": lambda: self._kill_returning("replay"),
        }

    def _raise(self, kind: str, role: str) -> set[int]:
        fleet = self._fleet
        fleet.wait(lambda: fleet.has_begun(role or "env-0", STARTED_S), time.monotonic() + 2 * STARTED_S, "a start")
        gone = {fleet.pids()[role]} if role else set()
        raised = raising.ask(fleet.raising, kind, f"error {next(self._numbers)}")  # the same one twice ends a run
        fleet.wait(raised, time.monotonic() + RAISED_S, f"the error in {kind}")
        return gone

    def _kill_returning(self, role: str) -> set[int]:
        """Kills the agent, and then a role that starts together with the next one."""
        pids = self._fleet.pids()
        kill(pids["agent"])
        pid = self._fleet.await_start(role, pids[role])
        time.sleep(self._rng.uniform(*AGAIN_S))
        kill(pid)
        return {pids["agent"], pids[role], pid}


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it died meanwhile, of an earlier fault
