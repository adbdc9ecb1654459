"""The supervisor's grip on one running role: start it, ask it to stop, kill it, learn that it ended."""

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
    """A role that was prepared. `reports`, `exit_fd` and the rest hold from `start` until `close`."""

    reports: ReportReader
    pid: int | None
    exit_fd: int | None  # becomes readable when the role has ended, where the system offers that

    def start(self) -> None: ...

    def request_stop(self) -> None: ...

    def send_disk_state(self, low: bool) -> None:
        """Whether the disk of the run folder is nearly full: the role's context says so from now on."""

    def request_stacks(self) -> None:
        """Has the role append the Python stacks of its threads to its file of stacks, as soon as it can."""

    def kill(self) -> None:
        """Ends the role by force, where that is possible."""

    def has_ended(self) -> bool: ...

    def collect(self) -> int | None:
        """After the end: clears away what the role left running, and returns the exit code if it has one."""

    def close(self) -> None: ...


def make_handle(spec: RoleSpec, folder: RunFolder) -> RoleHandle:
    return ThreadHandle(spec, folder) if spec.thread else ProcessHandle(spec, folder)


class ProcessHandle:
    """A role in a process, session and process group of its own.

    A plain child process and not `multiprocessing`: the user's main module is not imported again, so that a fleet
    starts from a script without a guard, from a prompt and from a test alike.
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
                f"role {spec.name} cannot be sent to its process: {error}: "
                "create what cannot be pickled inside the factory"
            ) from error

    def start(self) -> None:
        report_fd, report_child_fd = os.pipe()
        control_child_fd, self._control_fd = os.pipe()
        self.reports = ReportReader(report_fd)
        try:
            # A file and not a pipe: writing it never waits for the child to read.
            with tempfile.TemporaryFile() as spec_file, self._open_log() as log:
                spec_file.write(json.dumps(self._header()).encode() + b"\n" + self._payload)
                spec_file.seek(0)
                fds = (spec_file.fileno(), control_child_fd, report_child_fd)
                self._process = subprocess.Popen(
                    # -P: the working folder must not shadow modules unless it does so in this process, too.
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
        with contextlib.suppress(AttributeError, OSError):  # Linux only; elsewhere the supervisor asks once a second
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
        with contextlib.suppress(ChildProcessError):  # somebody else reaped it
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def collect(self) -> int | None:
        # Before the process is reaped: until then its number, which is also its group's, cannot be anybody else's.
        self.kill()
        return self._process.wait()

    def close(self) -> None:
        for fd in (self._control_fd, self.reports.fd, self.exit_fd):
            if fd is not None:
                os.close(fd)
        stacks = self._folder.stacks_path(self._spec.name)
        with contextlib.suppress(OSError):
            if stacks.stat().st_size == 0:  # opened in case of a stall that never came
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
            "sys_path": [str(Path(path).absolute()) for path in sys.path],  # "" is the working folder
            "pythonpath": os.environ.get("PYTHONPATH"),
            "sockets": str(self._folder.sockets),
            "stacks": str(self._folder.stacks_path(self._spec.name)),
        }

    def _environment(self) -> dict[str, str]:
        """Only what the child needs to find this package; the rest of the path comes with its spec."""
        root = str(Path(dreamfleet.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self._spec.env}


class ThreadHandle:
    """A role in a thread of this process. It can be asked to stop, not killed."""

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
        if self.reports.ended:  # closing the pipe is the last thing the thread does
            self._thread.join(1.0)
        return not self._thread.is_alive()

    def collect(self) -> int | None:
        return None

    def close(self) -> None:
        os.close(self.reports.fd)
        if not self._thread.is_alive():  # else the role still holds its stop switch
            self._stop.close()

    def _run(self, report: PipeReporter) -> None:
        with contextlib.closing(report), self._folder.log_path(self._spec.name).open("a") as log:
            signs = self._disk_low, self._run_ends
            run_target(lambda: self._spec.target, self._spec.name, self._stop, report, log, *signs)
