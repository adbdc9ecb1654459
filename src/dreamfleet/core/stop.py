"""The signal that ends a role. Wakes threads that wait on an event and those that wait on a socket."""

from __future__ import annotations

import contextlib
import os
import threading

from dreamfleet.core.errors import Stopped


class Stop:
    """A one-way switch.

    `wait` serves threads that wait for time to pass. `fileno` is a descriptor that becomes readable once the switch is
    set and stays so, to be polled beside a socket: a blocked receive then ends at once instead of at its deadline.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._read_fd, self._write_fd = os.pipe()

    def set(self) -> None:
        if not self._event.is_set():
            self._event.set()
            with contextlib.suppress(OSError):  # closed meanwhile: nobody waits any more
                os.write(self._write_fd, b"x")

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._event.wait(timeout_s)

    def check(self) -> None:
        if self._event.is_set():
            raise Stopped("the role was asked to stop")

    def fileno(self) -> int:
        return self._read_fd

    def close(self) -> None:
        for fd in (self._read_fd, self._write_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
