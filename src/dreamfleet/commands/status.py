"""Show the status of a run once, or continuously until it has ended."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from rich.console import Console

from dreamfleet.ui.live_printer import LivePrinter
from dreamfleet.ui.run_reader import read_run
from dreamfleet.ui.screen import line, screen

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 10.0


def show_status(run: Path, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print(screen(read_run(run), console))


def watch_status(run: Path, console: Console | None = None, stop: threading.Event | None = None) -> None:
    """Show the run until it has ended, `stop` is set, or Ctrl-C. The run itself is not affected."""
    console = console or Console(highlight=False)
    stop = stop or threading.Event()
    live_printer = LivePrinter(console)
    found = read_run(run)  # raises errors of the folder before anything is drawn
    live_printer.start()
    next_line = 0.0
    try:
        while True:
            shown = found
            if console.is_terminal:
                live_printer.frame(lambda shown=shown: screen(shown, console))  # type: ignore[misc]
            elif time.monotonic() >= next_line and not found.ended:
                next_line = time.monotonic() + LINE_EVERY_S
                live_printer.line(line(found))
            if found.ended or stop.wait(LOOK_EVERY_S):
                break
            found = read_run(run)
    except KeyboardInterrupt:
        pass
    finally:
        live_printer.end(line(found))
