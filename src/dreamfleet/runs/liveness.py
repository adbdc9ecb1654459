"""Liveness of a run, determined from its folder and the processes of this machine."""

from __future__ import annotations

import json
import socket
import time
from enum import StrEnum
from pathlib import Path

import psutil

from dreamfleet.runs.status import STATUS_FILE, RunStatus, read_status

SILENT_AFTER_S = 10.0  # a status is written about once a second
CLOCKS_DIFFER_S = 60.0  # at most: those of files and of processes


class Liveness(StrEnum):
    NONE = "none"  # no status yet
    LIVE = "live"
    SILENT = "silent"  # the process exists but no longer writes its status
    UNREACHABLE = "unreachable"  # on another machine, and no longer writes its status
    DIED = "died"  # the process is gone, but the run had not ended
    ENDED = "ended"

    @property
    def lives(self) -> bool:
        """Whether a process probably uses the run folder."""
        return self in (Liveness.LIVE, Liveness.SILENT)


def look(run: Path, now: float | None = None) -> tuple[RunStatus | None, Liveness]:
    """Return the last status in a run folder and the liveness of the run."""
    gone = _process_is_gone(run)  # before reading the status, because a run writes its end before its process ends
    status = read_status(run)
    if status is None:
        return None, Liveness.NONE
    if status.state.ended:
        return status, Liveness.ENDED
    host = _host(run)
    silent = age_s(run, status, now) >= SILENT_AFTER_S
    if gone and (host == socket.gethostname() or (silent and host is None)):
        return status, Liveness.DIED
    if not silent:
        return status, Liveness.LIVE
    if host not in (None, socket.gethostname()):
        return status, Liveness.UNREACHABLE
    return status, Liveness.SILENT if gone is False and not _is_another_process(run) else Liveness.DIED


def is_live(run: Path) -> bool:
    """Return whether a fleet uses the folder, on this or another machine."""
    return look(run)[1].lives


def age_s(run: Path, status: RunStatus, now: float | None = None) -> float:
    """Return the seconds since a status was written."""
    written = status.time
    if written is None:
        try:
            written = (run / STATUS_FILE).stat().st_mtime
        except OSError:
            return 0.0
    return max(0.0, (time.time() if now is None else now) - written)


def _process_is_gone(run: Path) -> bool | None:
    """Return whether the process is gone, or None if its PID is unknown."""
    try:
        return not psutil.pid_exists(int((run / ".lock").read_text()))
    except (OSError, ValueError):
        return None


def _is_another_process(run: Path) -> bool:
    """Whether the process with the number of the run's began after the run did. Numbers are given out again."""
    try:
        lock = run / ".lock"
        return psutil.Process(int(lock.read_text())).create_time() > lock.stat().st_mtime + CLOCKS_DIFFER_S
    except (OSError, ValueError, psutil.Error):
        return False


def _host(run: Path) -> str | None:
    """Return the host name of the run's launcher."""
    try:
        return str(json.loads((run / "fleet.json").read_bytes())["host"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
