"""Looks at a fleet from outside: runs one in a process of its own, reads its run folder, waits for conditions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

SCRIPT = """
import sys
from support import fake_roles
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.supervisor import Supervisor
from dreamfleet.supervision.role_spec import RoleSpec

with RunFolder(sys.argv[1]) as folder:
    print(folder.sockets, flush=True)
    specs = [RoleSpec(f"{name}_{i}", getattr(fake_roles, name), i) for i, name in enumerate(sys.argv[3:])]
    code = Supervisor(specs, folder, stop_timeout_s=float(sys.argv[2])).run()
sys.exit(code)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        threading.Event().wait(0.01)


def read_events(run: Path) -> list[dict[str, Any]]:
    path = run / "events.jsonl"
    if not path.exists():
        return []
    *lines, _ = path.read_text().split("\n")  # the last one may still be on its way
    return [json.loads(line) for line in lines]


def events_of(run: Path, event: str) -> list[dict[str, Any]]:
    return [entry for entry in read_events(run) if entry["event"] == event]


def is_running(pid: int) -> bool:
    """A zombie is not running: after its supervisor was killed, reaping it is the init process's business."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class OutsideFleet:
    """A supervisor of fake roles in a process of its own; role i has stop rank i and is called <name>_<i>."""

    def __init__(self, run: Path, *roles: str, stop_timeout_s: float = 10.0, wait_ready: bool = True) -> None:
        self.run = run
        tests, source = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(run), str(stop_timeout_s), *roles],
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.sockets = Path(self.process.stdout.readline().strip())
        if wait_ready:
            wait_until(lambda: len(events_of(run, "ready")) == len(roles), 20.0, f"{roles} ready")

    @property
    def pids(self) -> dict[str, int]:
        """By role; the process that a role started itself has the name "grandchild"."""
        started = {entry["role"]: entry["detail"]["pid"] for entry in events_of(self.run, "start")}
        for entry in events_of(self.run, "grandchild"):
            started["grandchild"] = entry["detail"]["pid"]
        return started

    def __enter__(self) -> OutsideFleet:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float) -> tuple[int, str]:
        """The exit code and what was printed to stderr."""
        _, printed = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, printed

    def expect_nothing_left(self, timeout_s: float = 0.0) -> None:
        wait_until(lambda: not any(map(is_running, self.pids.values())), timeout_s, f"end of {self.pids}")
        wait_until(lambda: not self.sockets.exists(), timeout_s, f"removal of {self.sockets}")
