"""Handles of running roles, which the supervisor uses to start, stop and kill them and to detect their end."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO, Protocol

import cloudpickle

import dreamfleet
from dreamfleet.core.errors import BadInput
from dreamfleet.core.stop import Stop
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.supervision.reports import DISK_FREE, DISK_LOW, STACKS, STOP, PipeReporter, ReportReader, run_target
from dreamfleet.supervision.role_spec import RoleSpec


class RoleHandle(Protocol):
    """A role that is ready to start. Its attributes are valid from `start` until `close`."""

    reports: ReportReader
    pid: int | None
    exit_fd: int | None  # becomes readable when the role has ended, if the system supports it

    def start(self) -> None: ...

    def request_stop(self) -> None: ...

    def send_disk_state(self, low: bool) -> None:
        """Update the role's context with whether the run folder's disk is nearly full."""

    def request_stacks(self) -> None:
        """Request that the role appends the Python stacks of its threads to its stacks file."""

    def kill(self) -> None:
        """Kill the role if possible."""

    def has_ended(self) -> bool: ...

    def collect(self) -> int | None:
        """Clean up an ended role's remaining processes. Return its exit code, if any."""

    def close(self) -> None: ...


def make_handle(spec: RoleSpec, folder: RunFolder) -> RoleHandle:
    return ThreadHandle(spec, folder) if spec.thread else ProcessHandle(spec, folder)


class ProcessHandle:
    """A role in its own process, session and process group.

    It is a plain child process instead of a `multiprocessing` one, which would import the user's main module again.
    Fleets can therefore start from a script without a guard, a prompt or a test.
    """

    def __init__(self, spec: RoleSpec, folder: RunFolder) -> None:
        self.pid: int | None = None
        self.exit_fd: int | None = None
        self._spec = spec
        self._folder = folder
        try:
            self._payload = cloudpickle.dumps(spec.target)
        except Exception as error:
            raise BadInput(
                f"role {spec.name} cannot be pickled for its process: {error}: "
                "create objects that cannot be pickled inside the factory"
            ) from error

    def start(self) -> None:
        report_fd, report_child_fd = os.pipe()
        control_child_fd, self._control_fd = os.pipe()
        self.reports = ReportReader(report_fd)
        try:
            # A file instead of a pipe, because writing it never waits for the child to read.
            with tempfile.TemporaryFile() as spec_file, self._open_log() as log:
                spec_file.write(json.dumps(self._header()).encode() + b"\n" + self._payload)
                spec_file.seek(0)
                fds = (spec_file.fileno(), control_child_fd, report_child_fd)
                self._process = subprocess.Popen(
                    # -P: the working directory must not shadow modules, unless it does here.
                    [sys.executable, "-P", "-m", "dreamfleet.supervision.child", *map(str, fds)],
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment(),
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._control_fd)
            os.close(report_fd)
            raise
        finally:
            os.close(control_child_fd)
            os.close(report_child_fd)
        self.pid = self._process.pid
        with contextlib.suppress(AttributeError, OSError):  # Linux only; elsewhere it is polled
            self.exit_fd = os.pidfd_open(self.pid)

    def request_stop(self) -> None:
        self._say(STOP)

    def send_disk_state(self, low: bool) -> None:
        self._say(DISK_LOW if low else DISK_FREE)

    def kill(self) -> None:
        assert self.pid is not None
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        assert self.pid is not None
        with contextlib.suppress(ChildProcessError):  # already reaped elsewhere
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def collect(self) -> int | None:
        # Kill the group before reaping the process. Until then, its PID, and so the group's, cannot be reused.
        self.kill()
        return self._process.wait()

    def close(self) -> None:
        for fd in (self._control_fd, self.reports.fd, self.exit_fd):
            if fd is not None:
                os.close(fd)
        stacks = self._folder.stacks_path(self._spec.name)
        with contextlib.suppress(OSError):
            if stacks.stat().st_size == 0:  # opened in case of a stall, but unused
                stacks.unlink()

    def request_stacks(self) -> None:
        self._say(STACKS)

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._control_fd, word + b"\n")

    def _open_log(self) -> BinaryIO:
        return self._folder.log_path(self._spec.name).open("ab")

    def _header(self) -> dict[str, object]:
        return {
            "name": self._spec.name,
            "sys_path": [str(Path(path).absolute()) for path in sys.path],  # "" is the working directory
            "pythonpath": os.environ.get("PYTHONPATH"),
            "sockets": str(self._folder.sockets),
            "stacks": str(self._folder.stacks_path(self._spec.name)),
        }

    def _environment(self) -> dict[str, str]:
        """Return the variables that the child needs to find this package. The spec contains the full path."""
        root = str(Path(dreamfleet.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self._spec.env}


class ThreadHandle:
    """A role in a thread of this process. It can be stopped but not killed."""

    pid: int | None = None
    exit_fd: int | None = None

    def __init__(self, spec: RoleSpec, folder: RunFolder) -> None:
        self._spec = spec
        self._folder = folder

    def start(self) -> None:
        report_fd, write_fd = os.pipe()
        self.reports = ReportReader(report_fd)
        self._stop = Stop()
        self._disk_low = threading.Event()
        self._run_ends = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(PipeReporter(write_fd),), name=self._spec.name, daemon=True
        )
        self._thread.start()

    def request_stop(self) -> None:
        self._run_ends.set()
        self._stop.set()

    def send_disk_state(self, low: bool) -> None:
        self._disk_low.set() if low else self._disk_low.clear()

    def request_stacks(self) -> None:
        with contextlib.suppress(OSError), self._folder.stacks_path(self._spec.name).open("a") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    def kill(self) -> None:
        self._stop.set()

    def has_ended(self) -> bool:
        if self.reports.ended:  # the thread closes the pipe last
            self._thread.join(1.0)
        return not self._thread.is_alive()

    def collect(self) -> int | None:
        return None

    def close(self) -> None:
        os.close(self.reports.fd)
        if not self._thread.is_alive():  # otherwise the role still uses its stop switch
            self._stop.close()

    def _run(self, report: PipeReporter) -> None:
        with contextlib.closing(report), self._folder.log_path(self._spec.name).open("a") as log:
            signs = self._disk_low, self._run_ends
            run_target(lambda: self._spec.target, self._spec.name, self._stop, report, log, *signs)
