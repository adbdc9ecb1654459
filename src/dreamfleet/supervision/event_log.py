"""Output of the supervisor: events, the status and terminal messages. Failures to write never end a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dreamfleet.core.context import TERMINAL_TEXT
from dreamfleet.core.events import Event
from dreamfleet.runs.run_folder import RunFolder
from dreamfleet.runs.status import RunStatus
from dreamfleet.supervision import terminal

OnStatus = Callable[[RunStatus], str | None]  # returns a reason to end the run, or None


class EventLog:
    """Writer of the run folder's events and status. Report write errors, such as a full disk, once and continue."""

    def __init__(self, folder: RunFolder, on_status: OnStatus | None) -> None:
        self._folder = folder
        self._on_status = on_status
        self._reported_error = False
        self._printed: set[str] = set()

    def event(self, role: str, event: str, detail: Mapping[str, Any]) -> None:
        with self._reporting_errors():
            self._folder.write_event(role, event, detail)

    def status(self, status: RunStatus) -> str | None:
        with self._reporting_errors():
            self._folder.write_status(status)
        return self._on_status(status) if self._on_status else None

    def print(self, text: str) -> None:
        terminal.print_line(text)

    def print_event(self, event: str, detail: Mapping[str, Any]) -> None:
        """Print the terminal message of a role's event, if it has one."""
        if event == Event.WARNING:
            self.print(f"dreamfleet: {detail.get('text')}")
        elif event == Event.ENV_RESTART:
            self._print_restart(detail)
        elif TERMINAL_TEXT in detail:
            self.print(f"dreamfleet: {detail[TERMINAL_TEXT]}")

    def _print_restart(self, detail: Mapping[str, Any]) -> None:
        """Print why an environment is restarted, once per location of the error."""
        error, place = str(detail.get("error")), str(detail.get("place") or "")
        if (place or error) not in self._printed:
            self._printed.add(place or error)
            where = f", raised at {place}" if place else ""
            self.print(f"dreamfleet: {detail.get('name')} failed and is being restarted: {error}{where}")

    @contextlib.contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._reported_error:
                self._reported_error = True
                self.print(f"dreamfleet: cannot write the run folder: {error}")
