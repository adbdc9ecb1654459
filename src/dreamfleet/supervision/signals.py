"""Turns signals into bytes on a descriptor, so that they are handled between events and not in the middle of a line."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any

STACKS_SIGNAL = signal.SIGUSR1  # at which a role's process writes its Python stacks


class SignalPipe:
    """Once installed, the given signals are only noted; `read` returns those that came. Leaving restores the handlers.

    The bytes are written by the interpreter's C handler, so that a signal arrives even while the main thread is inside
    native code. Python allows handlers in the main thread only: installed elsewhere, the pipe stays silent.
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
        """The signals noted since the last call. Others that have a Python handler pass through the same pipe."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(n) for n in os.read(self._read_fd, 4096) if n in self._signals]
        return []


def _note(number: int, frame: FrameType | None) -> None:
    """Does nothing: a handler must exist for the wake-up descriptor to be written."""
