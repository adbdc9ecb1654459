"""What the supervisor does about a run that stands still or is about to run out of something: tells it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from dreamfleet.core.events import Event
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.event_log import Journal
from dreamfleet.supervision.managed_role import WatchedRole
from dreamfleet.supervision.resources import Guards
from dreamfleet.supervision.signals import STACKS_SIGNAL
from dreamfleet.supervision.stacks import is_stopped, write_threads
from dreamfleet.supervision.stalls import Stall, Watchdog

PATIENCE = 3  # looks after which a role that was asked for its stacks and is not stopped gets the signal


class Vigil:
    """Looks at the roles once a second. Owned by the supervisor's thread."""

    def __init__(
        self,
        roles: Sequence[WatchedRole],
        folder: RunFolder,
        journal: Journal,
        stall_timeout_s: float = 0.0,
        min_disk_gb: float = 0.0,
    ) -> None:
        self._roles = roles
        self._folder = folder
        self._journal = journal
        self._watchdog = Watchdog(stall_timeout_s)
        self._asked: dict[str, tuple[int, int, int]] = {}  # by role: its process, bytes of stacks before, looks left
        self._guards = Guards(folder.path, min_disk_gb, self._tell_disk)

    def watch_progress(self) -> list[tuple[WatchedRole, str]]:
        """Tells of stalls; returns the roles that cause one and would go on after a restart, and what they do."""
        self._insist()
        stalls, ended = self._watchdog.look(self._roles)
        for what, seconds in ended.items():
            text = f"{what} after a stall of {seconds:.0f} s more than run.stall_timeout_s"
            self._journal.event(self._name(what), Event.RECOVERED, {"reason": text, "what": what})
            self._journal.say(f"dreamfleet: goes on: {text}")
        return [culprit for stall in stalls for culprit in self._tell(stall)]

    def watch_machine(self) -> None:
        pids = {role.name: role.handle.pid for role in self._roles if role.alive and role.handle.pid is not None}
        for scarce in self._guards.look(pids):
            self._journal.event("supervisor", Event.WARNING, {"text": scarce.text, "what": scarce.what})
            self._journal.say(f"dreamfleet: {scarce.text}")

    def _tell(self, stall: Stall) -> list[tuple[WatchedRole, str]]:
        involved = [role for role in self._roles if role.name in stall.roles and role.alive]
        for role in involved:
            self._ask_stacks(role, stall.text)
        detail = {"reason": stall.text, "what": stall.what, "stacks": [str(role.stacks_path) for role in involved]}
        self._journal.event(self._name(stall.what), Event.STALL, detail)
        self._journal.say(f"dreamfleet: stalled: {stall.text}; stacks are in {self._folder.logs}/*.stacks.txt")
        return [(role, f"stalled: {stall.text}") for role in involved if role.name == stall.culprit]

    def _ask_stacks(self, role: WatchedRole, why: str) -> None:
        pid = role.handle.pid
        write_threads(pid, role.stacks_path, why)
        with contextlib.suppress(OSError):
            if pid is not None:
                self._asked[role.name] = pid, role.stacks_path.stat().st_size, PATIENCE
        role.handle.ask_stacks()

    def _insist(self) -> None:
        """A process whose interpreter is locked up writes its stacks from a signal handler, in native code.

        Only then: with threads that run, that handler may read what is being changed, and crash.
        """
        for role in self._roles:
            pid, size, looks = self._asked.pop(role.name, (0, 0, 0))
            if not role.alive or role.handle.pid != pid or is_stopped(pid):
                continue
            with contextlib.suppress(OSError):
                if role.stacks_path.stat().st_size > size:
                    continue
                if looks:
                    self._asked[role.name] = pid, size, looks - 1
                else:
                    os.kill(pid, STACKS_SIGNAL)

    def greet(self, role: WatchedRole) -> None:
        """Tells a role that starts what the others know."""
        if "disk" in self._guards.scarce:
            role.handle.tell_disk(True)

    def _tell_disk(self, low: bool) -> None:
        self._journal.event("supervisor", Event.DISK_LOW if low else Event.DISK_FREE, {})
        for role in self._roles:
            if role.alive:
                role.handle.tell_disk(low)

    def _name(self, what: str) -> str:
        return what if any(role.name == what for role in self._roles) else "supervisor"
