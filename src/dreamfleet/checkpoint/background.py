"""One job at a time on a thread of its own: how files are written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dreamfleet.core.errors import DeadlineExceeded


class Background:
    """Starts jobs and keeps what went wrong with the last one until somebody asks. Belongs to one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Only while no other job is under way."""
        assert not self.busy

        def run() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        self._error = None
        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Waits until the job is done, and raises what went wrong with it, once."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise DeadlineExceeded(f"{self._name} was not done within {timeout_s:g} s")
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
