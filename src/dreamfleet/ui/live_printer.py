"""Print from a separate thread, so that a blocked terminal does not block the run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live

FRAMES_PER_S = 4.0
LAST_WORDS_S = 2.0  # time limit for printing the rest at the end


class LivePrinter:
    """Printer of permanent lines, in order, with a live frame below them. Only the latest frame is drawn.

    Other output to stderr also appears above the frame.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._changed = threading.Condition()  # guards the four fields below
        self._lines: deque[RenderableType] = deque()
        self._frame: Callable[[], RenderableType] | None = None
        self._ending = False
        self._last_words = ""
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False) if console.is_terminal else None
        self._next_frame = 0.0  # earliest time of the next frame; only used by the thread
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
        """Print the last words below the last frame and wait until they are printed."""
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
        """Wait for output and print it. Return whether to continue."""
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
            self._live.start()  # no effect if already started
            self._live.update(frame(), refresh=True)
        return not ending

    def _print(self, words: RenderableType) -> None:
        # Let the terminal wrap text, so that it stays on one line in files. Tables wrap themselves.
        self._console.print(words, soft_wrap=isinstance(words, str), markup=False, highlight=False)
