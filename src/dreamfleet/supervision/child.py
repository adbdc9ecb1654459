"""The main module of a role's process: `python -m dreamfleet.supervision.child SPEC_FD CONTROL_FD REPORT_FD`.

This is the only module that unpickles data, and only from its own parent through an inherited descriptor. It imports
little, because that delays the start of every role.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import json
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from dreamfleet.core.files.open_files import raise_open_files_limit
from dreamfleet.core.stop import Stop
from dreamfleet.supervision.reports import DISK_FREE, DISK_LOW, STACKS, STOP, PipeReporter, run_target
from dreamfleet.supervision.signals import STACKS_SIGNAL, SignalPipe

ORPHAN_GRACE_S = 3.0
READY = "ready"


def main(arguments: Sequence[str]) -> int:
    spec_fd, control_fd, report_fd = (int(argument) for argument in arguments)
    for fd in (spec_fd, control_fd, report_fd):
        os.set_inheritable(fd, False)  # processes started by the role must not keep the pipes open
    # The terminal sends the signal to the whole fleet. The supervisor handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_open_files_limit()
    faulthandler.enable()
    header, payload = _read_spec(spec_fd)
    _take_over_paths(header)
    stacks = _stacks_file(header["stacks"])
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)

    stop, report, disk_low = Stop(), SettledReporter(report_fd), threading.Event()
    signals = SignalPipe([signal.SIGTERM]).install()  # for the lifetime of the process, like the thread that reads it
    watch = ParentWatch(control_fd, signals, stop, disk_low, stacks, header["sockets"])
    watch.start()
    code = run_target(_loader(payload), header["name"], stop, report, sys.stderr, disk_low, watch.run_ends)
    if watch.orphaned:
        watch.end_group()
    return code


class SettledReporter(PipeReporter):
    """Reporter that freezes the heap once the role is ready.

    Start-up objects live for the whole run. Scanning hundreds of thousands of them costs about 100 ms per full
    garbage collection.
    """

    _settled = False

    def state(self, state: str) -> None:
        if state == READY and not self._settled:
            self._settled = True
            gc.collect()
            gc.freeze()
        super().state(state)


class ParentWatch(threading.Thread):
    """Wait for the supervisor's commands, its death or SIGTERM, and set the stop switch.

    Only the supervisor has the other end of the control pipe, which closes when it dies for any reason. After a short
    grace period, the role kills its process group and removes the fleet's folder of sockets.
    """

    def __init__(
        self,
        control_fd: int,
        signals: SignalPipe,
        stop: Stop,
        disk_low: threading.Event,
        stacks: TextIO,
        sockets: str,
    ) -> None:
        super().__init__(name="parent-watch", daemon=True)
        self.orphaned = False
        self.run_ends = threading.Event()  # as announced by the supervisor
        self._control_fd = control_fd
        self._signals = signals
        self._stop_switch = stop
        self._disk_low = disk_low
        self._stacks = stacks
        self._sockets = sockets

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._control_fd, select.POLLIN)
        poll.register(self._signals.fileno(), select.POLLIN)
        while not self.orphaned:
            ready = [fd for fd, _ in poll.poll()]
            if self._signals.fileno() in ready and self._signals.read():
                self._stop_switch.set()
            if self._control_fd in ready:
                self._obey(os.read(self._control_fd, 64))
        # The native timer thread of faulthandler ends the process and prints where it hung, even if this thread cannot
        # run because the interpreter is shutting down.
        faulthandler.dump_traceback_later(ORPHAN_GRACE_S + 1.0, exit=True)
        threading.Event().wait(ORPHAN_GRACE_S)
        faulthandler.dump_traceback(all_threads=True)
        self.end_group()

    def _obey(self, words: bytes) -> None:
        """Execute commands. They are few and short, so a read never contains only part of one."""
        self.orphaned = not words
        for word in words.split():
            if word == DISK_LOW:
                self._disk_low.set()
            elif word == DISK_FREE:
                self._disk_low.clear()
            elif word == STACKS:  # this thread holds the GIL, so no other one runs meanwhile
                faulthandler.dump_traceback(self._stacks, all_threads=True)
        if STOP in words.split():
            self.run_ends.set()
        if self.orphaned or self.run_ends.is_set():
            self._stop_switch.set()

    def end_group(self) -> NoReturn:
        """Kill this process and its process group."""
        import shutil  # costs a quarter of all imports above and is only needed here

        shutil.rmtree(self._sockets, ignore_errors=True)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _read_spec(fd: int) -> tuple[dict[str, Any], bytes]:
    with os.fdopen(fd, "rb") as file:
        return json.loads(file.readline()), file.read()


def _stacks_file(path: str) -> TextIO:
    """Open the stacks file now, because a signal handler cannot. Fall back to the log."""
    try:
        return Path(path).open("a")
    except OSError:
        return sys.stderr


def _take_over_paths(header: dict[str, Any]) -> None:
    """Make imports resolve as in the parent, and restore the parent's environment."""
    sys.path[:] = header["sys_path"]
    os.environ.pop("PYTHONPATH", None)
    if header["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = header["pythonpath"]
    for name, fd in (("stdout", 1), ("stderr", 2)):
        # Line buffering keeps the last lines of a killed role in its log.
        buffer = io.BufferedWriter(LogFile(fd, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(buffer, "utf-8", "backslashreplace", line_buffering=True))


class LogFile(io.FileIO):
    """The output of a role. Drop output if the disk is full, instead of failing the role."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _loader(payload: bytes) -> Callable[[], Callable[[], object]]:
    def load() -> Callable[[], object]:
        target: Callable[[], object] = pickle.loads(payload)
        return target

    return load


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
