"""Keeps a sink away from everything else: what it does, or fails to do, costs the run nothing but that sink."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from dreamfleet.metrics.values import Row, size_bytes

START_S = 300.0  # to begin: a service is asked, a database made
DEADLINE_S = 60.0  # to write a row
ROWS, ROW_BYTES = 64, 128 << 20  # what may wait to be written


class Writes(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class NotInstalled(Exception):
    """A sink needs a library that is missing. The message is the whole line that the user sees."""


class IsolatedSink:
    """Makes and runs a sink in a thread of its own.

    Rows wait in a queue that is bounded; one that finds it full is left out. A sink that raises an error, that is at
    one row for longer than `deadline_s`, or that does not catch up within that time once its queue was full is dropped:
    `tell` gets one line about it, and nothing is written to it any more. For its beginning it has `start_s`.
    """

    def __init__(
        self,
        label: str,
        make: Callable[[], Writes],
        tell: Callable[[str], None],
        *,
        start_s: float = START_S,
        deadline_s: float = DEADLINE_S,
        rows: int = ROWS,
        time_fn: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self._make = make
        self._tell = tell
        self._start_s = start_s
        self._deadline_s = deadline_s
        self._most_rows = rows
        self._time = time_fn
        self._changed = threading.Condition()  # guards every field below
        self._rows: deque[Row] = deque()
        self._bytes = 0
        self._busy: tuple[float, float] | None = None  # since when, and for how many seconds it may be
        self._behind_since: float | None = None  # when its queue was full, until it is empty
        self._begun = False
        self._dropped = ""  # why
        self._ending = False
        self._ended = False
        # A daemon: the process ends although a sink may hang.
        self._thread = threading.Thread(target=self._run, name=f"sink-{label}", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        """Never waits."""
        with self._changed:
            self._drop_if_overdue()
            if self._dropped or self._ending:
                return
            size = size_bytes(row)
            full = len(self._rows) >= self._most_rows or (self._rows and self._bytes + size > ROW_BYTES)
            if full:
                if self._begun and self._behind_since is None:
                    self._behind_since = self._time()
                return
            self._rows.append(row)
            self._bytes += size
            self._changed.notify_all()

    def state(self) -> str:
        """Also notices that the sink hangs, so it is asked about once a second."""
        with self._changed:
            self._drop_if_overdue()
            return self._dropped or "ok"

    def end(self) -> None:
        """No more rows will come."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def wait_ended(self, timeout_s: float) -> None:
        """Waits for the sink to write what it has and to close; one that takes longer is left to itself."""
        with self._changed:
            ended = self._changed.wait_for(lambda: self._ended or bool(self._dropped), timeout_s)
            if not ended:
                self._drop(
                    f"{self.label} did not finish in time, what it had last may be missing: set a longer "
                    "run.stop_timeout_s",
                    whole=True,
                )

    def _run(self) -> None:
        sink: Writes | None = None
        try:
            with self._at_work(self._start_s):
                sink = self._make()
            while (row := self._next()) is not None:
                with self._at_work(self._deadline_s):
                    sink.write(row)
        except NotInstalled as error:
            self._drop(str(error), whole=True)
        except BaseException as error:  # SystemExit included: whatever a sink raises is its own affair
            self._fail(error)
        try:
            if sink is not None:
                with self._at_work(self._deadline_s):
                    sink.close()
        except BaseException as error:
            self._fail(error)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self) -> Row | None:
        """The oldest row, or None once the sink is dropped or everything is written."""
        with self._changed:
            self._begun = True
            if not self._rows:
                self._behind_since = None
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._rows or self._ending or self._dropped)
            if self._dropped or not self._rows:
                return None
            row = self._rows.popleft()
            self._bytes -= size_bytes(row)
            return row

    @contextlib.contextmanager
    def _at_work(self, allowed_s: float) -> Iterator[None]:
        with self._changed:
            self._busy = self._time(), allowed_s
        try:
            yield
        finally:
            with self._changed:
                self._busy = None

    def _drop_if_overdue(self) -> None:
        now = self._time()
        if self._busy is not None and now - self._busy[0] > self._busy[1]:
            self._drop(f"it hangs, for longer than {self._busy[1]:g} s")
        elif self._behind_since is not None and now - self._behind_since > self._deadline_s:
            self._drop(f"it has been too slow for {self._deadline_s:g} s")

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(OSError):  # the log may lie on the disk that is full
            traceback.print_exception(error, file=sys.stderr)
        words = " ".join(f"{type(error).__name__}: {error}".split())
        self._drop(words)

    def _drop(self, reason: str, whole: bool = False) -> None:
        with self._changed:
            if self._dropped:
                return
            self._dropped = reason
            self._rows.clear()
            self._changed.notify_all()
        self._tell(reason if whole else f"{self.label} is left out from here on, training goes on: {reason}")
