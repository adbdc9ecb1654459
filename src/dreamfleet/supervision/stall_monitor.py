"""Reports of stalls and of scarce resources during a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from dreamfleet.core.events import Event
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.event_log import EventLog
from dreamfleet.supervision.managed_role import ManagedRole
from dreamfleet.supervision.resources import ResourceMonitor
from dreamfleet.supervision.signals import STACKS_SIGNAL
from dreamfleet.supervision.stacks import is_stopped, write_threads
from dreamfleet.supervision.stalls import Stall, Watchdog

MAX_LOOKS = 3  # checks before a running role that has not written its stacks receives the signal


class StallMonitor:
    """Monitor that checks the roles once a second. Owned by the supervisor's thread."""

    def __init__(
        self,
        roles: Sequence[ManagedRole],
        folder: RunFolder,
        event_log: EventLog,
        stall_timeout_s: float = 0.0,
        min_disk_gb: float = 0.0,
    ) -> None:
        self._roles = roles
        self._folder = folder
        self._event_log = event_log
        self._watchdog = Watchdog(stall_timeout_s)
        self._asked: dict[str, tuple[int, int, int]] = {}  # by role: PID, old file size, checks left
        self._resource_monitor = ResourceMonitor(folder.path, min_disk_gb, self._send_disk_state)

    def watch_progress(self) -> list[tuple[ManagedRole, str]]:
        """Report stalls. Return the roles that cause one and that a restart may fix, with a description."""
        self._signal_for_stacks()
        stalls, ended = self._watchdog.look(self._roles)
        for what, seconds in ended.items():
            text = f"{what} after a stall of {seconds:.0f} s more than run.stall_timeout_s"
            self._event_log.event(self._name(what), Event.RECOVERED, {"reason": text, "what": what})
            self._event_log.print(f"dreamfleet: recovered: {text}")
        return [culprit for stall in stalls for culprit in self._report(stall)]

    def watch_machine(self) -> None:
        pids = {role.name: role.handle.pid for role in self._roles if role.alive and role.handle.pid is not None}
        for shortage in self._resource_monitor.look(pids):
            self._event_log.event("supervisor", Event.WARNING, {"text": shortage.text, "what": shortage.what})
            self._event_log.print(f"dreamfleet: {shortage.text}")

    def _report(self, stall: Stall) -> list[tuple[ManagedRole, str]]:
        involved = [role for role in self._roles if role.name in stall.roles and role.alive]
        for role in involved:
            self._request_stacks(role, stall.text)
        detail = {"reason": stall.text, "what": stall.what, "stacks": [str(role.stacks_path) for role in involved]}
        self._event_log.event(self._name(stall.what), Event.STALL, detail)
        self._event_log.print(f"dreamfleet: stalled: {stall.text}; stacks are in {self._folder.logs}/*.stacks.txt")
        return [(role, f"stalled: {stall.text}") for role in involved if role.name == stall.culprit]

    def _request_stacks(self, role: ManagedRole, why: str) -> None:
        pid = role.handle.pid
        write_threads(pid, role.stacks_path, why)
        with contextlib.suppress(OSError):
            if pid is not None:
                self._asked[role.name] = pid, role.stacks_path.stat().st_size, MAX_LOOKS
        role.handle.request_stacks()

    def _signal_for_stacks(self) -> None:
        """Signal processes that have not written their stacks because the interpreter is locked up.

        The native signal handler is the last resort: while threads run, it may read changing data and crash.
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

    def add(self, role: ManagedRole) -> None:
        """Send the current state of the disk to a new role."""
        if "disk" in self._resource_monitor.shortages:
            role.handle.send_disk_state(True)

    def _send_disk_state(self, low: bool) -> None:
        self._event_log.event("supervisor", Event.DISK_LOW if low else Event.DISK_FREE, {})
        for role in self._roles:
            if role.alive:
                role.handle.send_disk_state(low)

    def _name(self, what: str) -> str:
        return what if any(role.name == what for role in self._roles) else "supervisor"
