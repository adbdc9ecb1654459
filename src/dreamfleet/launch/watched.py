"""What the supervisor knows of each role, and how it words a role's failure."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamfleet.launch.handles import RoleHandle
from dreamfleet.launch.reports import Report
from dreamfleet.launch.topology import RoleSpec

TAIL_LINES = 20
TAIL_BYTES = 16384


@dataclass(frozen=True)
class Failure:
    """Why a run fails: one line for everybody, and details that are printed above it."""

    role: str
    line: str
    details: str = ""
    bad_input: bool = False
    symptom: bool = False  # likely the consequence of another role's failure

    @property
    def text(self) -> str:
        details = self.details.rstrip("\n")
        return f"{details}\ndreamfleet: {self.line}" if details else f"dreamfleet: {self.line}"


class WatchedRole:
    """One role from its start to its end. Owned by the supervisor's thread."""

    def __init__(self, spec: RoleSpec, handle: RoleHandle, log_path: Path) -> None:
        self.spec = spec
        self.handle = handle
        self.log_path = log_path
        self.state = "starting"
        self.ready = False
        self.alive = False
        self.killed = False
        self.outcome: Report | None = None  # its last word: a report of kind "done" or "failed"
        self._status: dict[str, Any] = {}
        self._log_offset = log_path.stat().st_size if log_path.exists() else 0
        self._started = self._reported = time.monotonic()
        self._asked = self._started
        self._ended: float | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def stop_rank(self) -> int:
        return self.spec.stop_rank

    @property
    def saves(self) -> bool:
        return self.spec.saves

    def start(self) -> None:
        self.handle.start()
        self.alive = True
        self._started = self._reported = time.monotonic()

    def note(self, report: Report) -> None:
        """Takes over what a report says of the role itself."""
        self._reported = time.monotonic()
        if report["kind"] == "state":
            self.state = report["state"]
            self.ready = self.ready or self.state == "ready"
        elif report["kind"] == "status":
            self._status = report["status"]
        elif report["kind"] in ("done", "failed"):
            self.state = report["kind"]
            self.outcome = report

    def request_stop(self) -> None:
        self._asked = time.monotonic()
        self.handle.request_stop()

    def kill(self) -> None:
        self.killed = True
        self.handle.kill()

    def end(self) -> int | None:
        """Clears away the ended role and returns its exit code. Its last reports must have been read."""
        code = self.handle.collect()
        self.abandon()
        return code

    def abandon(self) -> None:
        """Lets go of a role, whether it has ended or cannot be made to."""
        self.handle.close()
        self.alive = False
        self._ended = time.monotonic()
        if self.outcome is None:
            self.state = "killed" if self.killed else "failed"

    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "state": self.state,
            "pid": self.handle.pid,
            "uptime_s": round((self._ended or now) - self._started, 3),
            "report_age_s": round(now - self._reported, 3),
            "status": self._status,
        }

    def failure_from_report(self, report: Report) -> Failure:
        line = " ".join(f"{self.name} failed: {report['message']}".split())
        details = "" if report["expected"] else report["traceback"]
        return Failure(self.name, line, details, report["bad_input"], report["symptom"])

    def failure_to_stop(self) -> Failure:
        """For a role that outlasted its time. Whatever made the fleet stop is rather the cause."""
        asked_s = time.monotonic() - self._asked
        fate = "left behind" if self.spec.thread else "killed"
        line = f"{self.name} did not stop within {asked_s:.1f} s and was {fate}, see {self.log_path}: "
        line += f"set a longer run.{'save' if self.saves else 'stop'}_timeout_s if it needs more time"
        return Failure(self.name, line, symptom=True)

    def failure_from_exit(self, code: int | None) -> Failure:
        """For a role that ended without a word."""
        if code is not None and code < 0:
            line = f"{self.name} died: signal {-code} ({_signal_name(-code)})"
        else:
            line = f"{self.name} died: its process ended with code {code}"
        return Failure(self.name, f"{line}, see {self.log_path}", self.log_tail())

    def log_tail(self) -> str:
        """The last lines of this run's output, bounded in size whatever the role printed."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_offset, end - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
            return "".join(lines[-TAIL_LINES:])
        return ""


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return "unknown"
