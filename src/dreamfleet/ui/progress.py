"""Progress display of a run: a banner, then a live view on a terminal or periodic lines in a file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group

from dreamfleet.runs.status import RunStatus
from dreamfleet.runs.tail import tail_rows
from dreamfleet.ui.banner import Line, agent_lines, banner_row, start_lines
from dreamfleet.ui.live_printer import LivePrinter
from dreamfleet.ui.run_summary import summarize
from dreamfleet.ui.screen import line, screen

LINE_EVERY_S = 10.0
EVENT_BYTES = 1 << 13


class Progress:
    """Progress display. `show` accepts every status of the supervisor and returns immediately.

    With `quiet`, only the last line is printed. The supervisor always prints errors.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._quiet = quiet
        self._live_printer = LivePrinter(self._console)
        self._next_line = 0.0
        self._printed_start = self._printed_agent = False

    def __enter__(self) -> Progress:
        self._live_printer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live_printer.end()

    def show(self, status: RunStatus) -> None:
        run = summarize(status, self._events(status))
        if not self._quiet:
            self._print_start(status)
            if self._console.is_terminal:
                self._live_printer.frame(lambda: Group("", screen(run, self._console)))
            elif not run.ended and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + LINE_EVERY_S
                self._live_printer.line(line(run))
        if run.ended:
            self._live_printer.end(line(run))  # before the supervisor prints what failed

    def _print_start(self, status: RunStatus) -> None:
        """Print the description of the run once it is known."""
        run = status.run.model_dump(exclude_unset=True) if status.run else {}
        if not self._printed_start:
            self._printed_start = True
            self._print_lines(start_lines(run))
            for note in run.get("notes", ()):
                self._live_printer.line(f"starting: {note}")
        if not self._printed_agent and status.agent.about:
            self._printed_agent = True
            self._print_lines(agent_lines(status.agent.about))

    def _print_lines(self, lines: Iterable[Line]) -> None:
        for name, words in lines:
            plain = f"starting: {name:7} {words}"
            self._live_printer.line(banner_row((name, words)) if self._console.is_terminal else plain)

    def _events(self, status: RunStatus) -> list[dict[str, Any]]:
        folder = status.run.folder if status.run else ""
        return tail_rows(Path(folder) / "events.jsonl", EVENT_BYTES) if folder else []
