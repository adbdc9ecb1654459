"""The report pipe from a role to its supervisor: one JSON object per line, and the code that runs a role's target.

Kinds: `state`, `status`, `event`, `finish` (see `core.context.Reporter`), and at the end of the target exactly one of
`done` or `failed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from dreamfleet.core.context import RoleContext, set_context
from dreamfleet.core.encoding.strict_json import encode
from dreamfleet.core.error_origin import headline
from dreamfleet.core.errors import BadInput, DeadlineExceeded, DreamfleetError, EnvFailed, Stopped, TransportError
from dreamfleet.core.events import Event
from dreamfleet.core.stop import Stop

Report = dict[str, Any]

# Commands of the supervisor on the control pipe, in the other direction.
STOP, DISK_LOW, DISK_FREE, STACKS = b"stop", b"disk_low", b"disk_free", b"stacks"

EVENT_QUEUE_BYTES = 1 << 20
READ_BYTES, MAX_READS = 1 << 16, 16  # more than a pipe holds, so that an ended role's pipe is read completely


class PipeReporter:
    """The role's end of the pipe.

    While the pipe is full, status reports are dropped, because later ones replace them, and events are queued up to a
    limit. Reports that the supervisor acts on (a state, the end) block until it reads. Without a reader, reports are
    dropped: the role learns of the supervisor's end by a stop, not by an error.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._lock = threading.Lock()  # guards the fields below and keeps lines whole
        self._backlog = bytearray()
        self._closed = False

    def state(self, state: str) -> None:
        self._send({"kind": "state", "state": state}, None)

    def status(self, status: Mapping[str, Any]) -> None:
        self._send({"kind": "status", "status": status}, 0)

    def event(self, event: Event, detail: Mapping[str, Any]) -> None:
        self._send({"kind": "event", "event": event, "detail": detail}, EVENT_QUEUE_BYTES)

    def finish(self, reason: str) -> None:
        self._send({"kind": "finish", "reason": reason}, None)

    def done(self) -> None:
        self._send({"kind": "done"}, None)

    def failed(self, error: BaseException) -> None:
        self._send({"kind": "failed", **describe_error(error)}, None)

    def close(self) -> None:
        """Close the stream. Later reports, which other threads may still send, are dropped."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)

    def _send(self, report: Report, queue_bytes: int | None) -> None:
        """Send if at most `queue_bytes` are queued. None blocks until the supervisor reads."""
        line = encode(report)
        with self._lock:
            self._flush(wait=False)
            if queue_bytes is None or len(self._backlog) <= queue_bytes:
                self._backlog += line
                self._flush(wait=queue_bytes is None)

    def _flush(self, wait: bool) -> None:
        """Write the backlog. The unwritten rest stays at the front, so that lines are never cut."""
        while self._backlog and not self._closed:
            try:
                del self._backlog[: os.write(self._fd, self._backlog)]
            except BlockingIOError:
                if not wait:
                    return
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()  # also returns when the reader is gone
            except OSError:
                self._backlog.clear()


class ReportReader:
    """The supervisor's end, which splits incoming data into reports. Invalid lines are skipped."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.ended = False  # all writers are gone
        self._rest = b""

    def read(self) -> list[Report]:
        """Return the reports that have arrived. Never blocks, even if the role reports continuously."""
        data = [self._rest]
        with contextlib.suppress(BlockingIOError):
            for _ in range(MAX_READS):
                chunk = os.read(self.fd, READ_BYTES)
                data.append(chunk)
                if not chunk:
                    self.ended = True
                    break
        *lines, self._rest = b"".join(data).split(b"\n")
        return [report for line in lines if (report := _decode(line)) is not None]


def run_target(
    load: Callable[[], Callable[[], object]],
    name: str,
    stop: Stop,
    report: PipeReporter,
    log: TextIO,
    disk_low: threading.Event | None = None,
    run_ends: threading.Event | None = None,
) -> int:
    """Run a role in this thread until it ends, report the outcome and return an exit code.

    `load` returns the target. It is called here, so that loading errors are reported like errors of the target.
    """
    disk_low, run_ends = disk_low or threading.Event(), run_ends or threading.Event()
    set_context(RoleContext(name, stop, report, disk_low, run_ends=run_ends))
    try:
        load()()
    except BaseException as error:  # report any error, including SystemExit
        if not isinstance(error, Stopped) and not (isinstance(error, SystemExit) and not error.code):
            report.failed(error)
            with contextlib.suppress(OSError):  # a full disk must not change how the role ends
                log.write(describe_error(error)["traceback"])
                log.flush()
            return 1
    report.done()
    return 0


def describe_error(error: BaseException) -> Report:
    """Describe an error for the supervisor. The exception object stays in its process."""
    typed = isinstance(error, DreamfleetError)
    of_env = isinstance(error, EnvFailed)
    words = headline(error)
    shown = (error.__cause__ if of_env else None) or error
    outer = shown.__traceback__
    tail = outer.tb_next if outer and outer.tb_next else outer  # without the frame of run_target
    return {
        "message": (str(error) if typed else words) or words,
        "traceback": "".join(traceback.format_exception(type(shown), shown, tail)),
        # Errors of other processes carry their traceback as a note and are unexpected.
        "expected": typed and not of_env and not getattr(error, "__notes__", None),
        "of_env": of_env,  # regardless of the role that encountered it
        "bad_input": isinstance(error, BadInput),
        # Raised by the peers of a broken role, so rarely the cause.
        "symptom": isinstance(error, (TransportError, DeadlineExceeded, ConnectionError)),
        "passing": _is_passing(error),
    }


def _is_passing(error: BaseException) -> bool:
    """Return whether a retry may succeed. Deliberately raised errors and failed assertions would repeat."""
    if isinstance(error, EnvFailed):
        return error.passing
    return isinstance(error, TransportError) or not isinstance(error, (DreamfleetError, AssertionError))


def _decode(line: bytes) -> Report | None:
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) and "kind" in report else None
