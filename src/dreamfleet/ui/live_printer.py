"""Prints from a thread of its own, so that a terminal that does not take anything holds up nobody."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live

FRAMES_PER_S = 4.0
LAST_WORDS_S = 2.0  # for what is still to be printed at the end; a terminal that takes longer is not waited for


class LivePrinter:
    """Lines are printed in their order and stay. Frames replace each other below them, and only the newest counts.

    Words that others write to stderr meanwhile appear above the frame, too.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._changed = threading.Condition()  # guards the four fields below
        self._lines: deque[RenderableType] = deque()
        self._frame: Callable[[], RenderableType] | None = None
        self._ending = False
        self._last_words = ""
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False) if console.is_terminal else None
        self._next_frame = 0.0  # when the next one may be drawn; the thread's own
        self._thread = threading.Thread(target=self._loop, name="live-printer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def line(self, words: RenderableType) -> None:
        with self._changed:
            self._lines.append(words)
            self._changed.notify()

    def frame(self, draw: Callable[[], RenderableType]) -> None:
        with self._changed:
            self._frame = draw
            self._changed.notify()

    def end(self, last_words: str = "") -> None:
        """Leaves the last frame where it is, with the last words below it. Returns when they are printed."""
        with self._changed:
            self._last_words = self._last_words or last_words
            self._ending = True
            self._changed.notify()
        self._thread.join(LAST_WORDS_S)

    def _loop(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the file closed
            while self._print_next():
                pass
        with contextlib.suppress(OSError, ValueError):
            if self._live and self._live.is_started:
                self._live.stop()
            if self._last_words:
                self._print(self._last_words)

    def _print_next(self) -> bool:
        """Waits for something to paint and paints it. Returns whether there may be more to come."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._frame or self._ending)
            pause_s = max(0.0, self._next_frame - time.monotonic())
            self._changed.wait_for(lambda: self._lines or self._ending, pause_s)
            lines, self._lines = self._lines, deque()
            frame, self._frame = self._frame, None
            ending = self._ending
        for words in lines:
            self._print(words)
        if frame and self._live:
            self._next_frame = time.monotonic() + 1 / FRAMES_PER_S
            self._live.start()  # unless it has been
            self._live.update(frame(), refresh=True)
        return not ending

    def _print(self, words: RenderableType) -> None:
        # A line of text is left to the terminal to wrap, and whole in a file; a table wraps by itself.
        self._console.print(words, soft_wrap=isinstance(words, str), markup=False, highlight=False)
