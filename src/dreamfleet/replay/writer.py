"""A thread that writes to disk behind the back of those who cannot wait for it."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable

from dreamfleet.core.errors import DeadlineExceeded, ReplayError


class Writer:
    """Runs jobs one after the other on a thread of its own.

    Every kind of error is reported once, a full disk in one line and any other with its traceback, and none ends the
    thread. Nothing in memory is lost: what could not be written is tried again by the next snapshot, which fails with
    the reason if it still cannot be.
    """

    def __init__(self) -> None:
        self.errors = 0
        self._reported: set[type[Exception]] = set()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="replay-writer", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return self._jobs.qsize()

    def submit(self, job: Callable[[], None]) -> None:
        """Calls `job` on the writer's thread, where an error is counted and not raised."""
        self._jobs.put(job)

    def wait(self, timeout_s: float) -> None:
        """Until everything submitted so far is done."""
        done = threading.Event()
        self._jobs.put(done.set)
        if not done.wait(timeout_s):
            raise DeadlineExceeded(f"replay chunks were not written within {timeout_s:g} s")

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self.errors += 1
                self._report(error)

    def _report(self, error: Exception) -> None:
        expected = isinstance(error, (ReplayError, OSError))
        kind = ReplayError if expected else type(error)
        if kind in self._reported:
            return
        self._reported.add(kind)
        sys.stderr.write(f"replay is not being written to disk: {error}\n")
        if not expected:
            traceback.print_exception(error)
