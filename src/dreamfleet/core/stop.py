"""The signal that ends a role. Wakes threads that wait on an event and those that wait on a socket."""

from __future__ import annotations

import os
import threading
import weakref

from dreamfleet.core.errors import Stopped


class Stop:
    """A one-way switch.

    `wait` serves threads that wait for time to pass. `fileno` is a descriptor that becomes readable once the switch is
    set and stays so, to be polled beside a socket: a blocked receive then ends at once instead of at its deadline.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()  # guards the descriptors: their numbers may belong to others once closed
        self._closed = False
        self._others: weakref.WeakSet[Stop] = weakref.WeakSet()  # guarded by the lock
        self._read_fd, self._write_fd = os.pipe()

    def set(self) -> None:
        with self._lock:
            if not self._event.is_set() and not self._closed:
                os.write(self._write_fd, b"x")
            self._event.set()
            others = list(self._others)
        for other in others:
            other.set()

    def also_sets(self, other: Stop) -> None:
        """Set `other` together with this switch, at once if it is set already, but not the other way round."""
        with self._lock:
            self._others.add(other)
            is_set = self._event.is_set()
        if is_set:
            other.set()

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
        """Gives the descriptors back; for an owner whose waiters are gone. May be repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_fd)
                os.close(self._write_fd)

    def __del__(self) -> None:
        self.close()
