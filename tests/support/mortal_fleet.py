"""A fleet, as a user starts it, whose roles are killed and stopped by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.cli_fleet import CliFleet, expect_nothing_left
from support.fleet_probe import events_of

FLEET = ["agent=support.surviving:Checking", "env=support.surviving:Living", "run.envs=2", "run.envs_per_worker=1"]
PACE = ["run.train_ratio=4", "run.save_every=2", "run.stop_timeout_s=20"]


class MortalFleet(CliFleet):
    """A fleet whose roles can be killed by name."""

    def __init__(self, run: Path, *overrides: str) -> None:
        super().__init__(run, *FLEET, *PACE, *overrides)

    def pid(self, role: str) -> int:
        return int(self.status()["roles"][role]["pid"])

    def restarts(self, role: str) -> int:
        return int(self.status()["roles"][role]["restarts"])

    def kill(self, *roles: str) -> None:
        """Kills them, and waits until they are back and the run goes on."""
        before = {role: self.restarts(role) for role in roles}
        for pid in [self.pid(role) for role in roles]:
            os.kill(pid, signal.SIGKILL)
        self.wait(lambda: all(self.restarts(role) > before[role] for role in roles), f"restart of {roles}")
        self.await_progress()

    def await_start(self, role: str, life: int) -> int:
        """The process of a role in this life, as soon as it has begun."""

        def starts() -> list[int]:
            return [entry["detail"]["pid"] for entry in events_of(self.run, "start") if entry["role"] == role]

        self.wait(lambda: len(starts()) >= life, f"life {life} of {role}")
        return starts()[life - 1]

    def await_progress(self) -> None:
        """Until all roles are ready, and steps and updates grow."""
        self.wait(lambda: all(role["state"] == "ready" for role in self.status()["roles"].values()), "all ready")
        step, updates = self.step(), self.updates()
        self.wait(lambda: self.step() > step and self.updates() > updates, "progress")

    def end(self) -> None:
        pids = [process.pid for process in self.processes()]
        sockets = self.sockets()
        code, printed = self.finish(timeout_s=100)
        assert code == 0, printed
        expect_nothing_left(pids, sockets)
