"""Signals as bytes on a descriptor, so that they are handled between events instead of at any line."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

STACKS_SIGNAL = signal.SIGUSR1  # makes a role's process write its Python stacks


class SignalPipe:
    """Queue of received signals. `install` adds handlers, `read` returns signals, and leaving restores the handlers.

    The interpreter's C handler writes the bytes, so signals arrive even while the main thread runs native code. Python
    only allows handlers in the main thread. In other threads, `install` does nothing.
    """

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def install(self) -> SignalPipe:
        if threading.current_thread() is threading.main_thread():
            self._previous_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
            self._previous = {number: signal.signal(number, _note) for number in self._signals}
        return self

    def __enter__(self) -> SignalPipe:
        return self.install()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._previous:
            signal.set_wakeup_fd(self._previous_fd)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def fileno(self) -> int:
        return self._read_fd

    def read(self) -> list[signal.Signals]:
        """Return the signals since the last call. Ignore other signals with a Python handler."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(n) for n in os.read(self._read_fd, 4096) if n in self._signals]
        return []


def _note(number: int, frame: FrameType | None) -> None:
    """Do nothing. The wake-up descriptor is only written if a handler exists."""
