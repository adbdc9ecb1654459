"""The supervisor's state of each role, and the messages for its failures."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from typing import Any

from dreamfleet.core.roles import RoleKind
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.backends import make_handle
from dreamfleet.supervision.failures import Failure, explain
from dreamfleet.supervision.reports import Report
from dreamfleet.supervision.role_spec import RoleSpec

TAIL_LINES = 20
TAIL_BYTES = 16384
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


class ManagedRole:
    """One role across all its restarts. Owned by the supervisor's thread."""

    def __init__(self, spec: RoleSpec, folder: RunFolder) -> None:
        self.spec = spec
        self.log_path = folder.log_path(spec.name)
        self.stacks_path = folder.stacks_path(spec.name)
        self.incarnations = 0
        self.restarts = 0
        self._folder = folder
        self._log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._prepare(spec)

    def _prepare(self, spec: RoleSpec) -> None:
        self.handle = make_handle(spec, self._folder)
        self.state = "starting"
        self.ready = False
        self.alive = False
        self.killed = False
        self.blame = ""  # why the supervisor killed it during the run
        self.kill_at: float | None = None  # deadline after which it is killed
        self.outcome: Report | None = None  # its final report, of kind "done" or "failed"
        self.last_status: dict[str, Any] = {}
        self.started = self._reported = time.monotonic()
        self._ready_at: float | None = None
        self._asked = self.started
        self._ended: float | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def kind(self) -> RoleKind:
        return self.spec.kind

    @property
    def stop_rank(self) -> int:
        return self.spec.stop_rank

    @property
    def saves(self) -> bool:
        return self.spec.saves

    @property
    def expendable(self) -> bool:
        """Whether the final snapshot does not need the role. True for env workers."""
        return self.spec.restart is not None and self.spec.restart.stateless

    def start(self) -> None:
        self.handle.start()
        self.alive = True
        self.incarnations += 1
        self.started = self._reported = time.monotonic()

    def restart(self, how: str) -> None:
        """Restart the role after it has ended."""
        target = self.spec.restart_target
        self._prepare(dataclasses.replace(self.spec, target=target(how)) if target else self.spec)
        self.restarts += 1
        self.start()

    def ready_s(self) -> float | None:
        """Return the seconds since the role became ready, until its end if it ended. None if it was never ready."""
        return None if self._ready_at is None else (self._ended or time.monotonic()) - self._ready_at

    def steps(self) -> int:
        """Return the steps reported by an env worker, without the first step of each environment, a reset."""
        status = self.last_status
        return max(0, int(status.get("steps", 0)) - int(status.get("envs", 0)))

    def silent_s(self) -> float:
        """Return the seconds since the last report."""
        return time.monotonic() - self._reported

    def note(self, report: Report) -> None:
        """Update the state of the role from a report."""
        self._reported = time.monotonic()
        if report["kind"] == "state":
            self.state = report["state"]
            if self.state == "ready" and not self.ready:
                self.ready = True
                self._ready_at = self._reported
        elif report["kind"] == "status":
            self.last_status = report["status"]
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
        """Clean up the ended role and return its exit code. Its last reports must have been read."""
        code = self.handle.collect()
        self.abandon()
        return code

    def abandon(self) -> None:
        """Release the role, whether it has ended or cannot be stopped."""
        self.handle.close()
        self.alive = False
        self._ended = time.monotonic()
        if self.outcome is None:
            self.state = "killed" if self.killed else "failed"

    def status(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "kind": self.spec.kind,
            "state": self.state,
            "pid": self.handle.pid,
            "uptime_s": round((self._ended or now) - self.started, 3),
            "report_age_s": round(now - self._reported, 3),
            "restarts": self.restarts,
            "status": self.last_status,
        }

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return statuses by name: its own, or those of the roles that it combines."""
        unfold = self.spec.unfold
        return {self.name: self.status()} if unfold is None else unfold(self.status())

    def failure_at_end(self, code: int | None) -> Failure:
        """Return the failure of a role that ended during the run."""
        if self.blame:
            return Failure(self.name, f"{self.name} {self.blame}", from_outside=True)
        if self.outcome is None:
            return self.failure_from_exit(code)
        if self.outcome["kind"] == "failed":
            return self.failure_from_report(self.outcome)
        line = f"{self.name} ended unexpectedly, see {self.log_path}"
        return Failure(self.name, line, self.log_tail(), from_outside=True)

    def failure_from_report(self, report: Report) -> Failure:
        line = explain(report["message"] if report["of_env"] else f"{self.name} failed: {report['message']}")
        details = "" if report["expected"] else report["traceback"]
        return Failure(self.name, line, details, report["bad_input"], report["symptom"], report["passing"])

    def failure_to_stop(self) -> Failure:
        """Return the failure of a role that did not stop in time. The cause is probably another failure."""
        asked_s = time.monotonic() - self._asked
        fate = "left behind" if self.spec.thread else "killed"
        line = f"{self.name} did not stop within {asked_s:.1f} s and was {fate}, see {self.log_path}: "
        line += f"increase run.{'save' if self.saves else 'stop'}_timeout_s if it needs more time"
        return Failure(self.name, line, symptom=True)

    def failure_from_exit(self, code: int | None) -> Failure:
        """Return the failure of a role that ended without a final report."""
        if code is not None and code < 0:
            line = f"{self.name} died: signal {-code} ({_signal_name(-code)})"
        else:
            line = f"{self.name} died: its process ended with code {code}"
        outside = code is not None and -code in FROM_OUTSIDE
        return Failure(self.name, f"{line}, see {self.log_path}", self.log_tail(), from_outside=outside)

    def log_tail(self) -> str:
        """Return the last lines of the role's output in this run, limited in size."""
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
