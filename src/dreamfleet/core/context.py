"""What a role is handed by whoever runs it: the stop switch and a way to report.

The context travels in a context variable, so that the public functions keep their plain signatures whether a role runs
as a process of its own, as a thread in a test, or by hand in a user's script.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from dreamfleet.core.events import Event
from dreamfleet.core.stop import Stop

TERMINAL_TEXT = "say"  # the key, in the details of any other event, of a line that the supervisor says on the terminal


class Reporter(Protocol):
    """Carries a role's reports to the supervisor. Every method may be called from any thread and never blocks long."""

    def state(self, state: str) -> None:
        """A step of the role's life: "ready" once it serves, "stopping" while it ends."""

    def status(self, status: Mapping[str, Any]) -> None:
        """Numbers and short texts for `status.json`; replaces the role's previous ones."""

    def event(self, event: Event, detail: Mapping[str, Any]) -> None:
        """One line for `events.jsonl`."""

    def finish(self, reason: str) -> None:
        """The run has reached its goal (its step budget): ask the supervisor to end it cleanly."""


class SilentReporter:
    """For roles that run outside a fleet, such as in a unit test."""

    def state(self, state: str) -> None: ...

    def status(self, status: Mapping[str, Any]) -> None: ...

    def event(self, event: Event, detail: Mapping[str, Any]) -> None: ...

    def finish(self, reason: str) -> None: ...


@dataclass(frozen=True)
class RoleContext:
    name: str = "role"
    stop: Stop = field(default_factory=Stop)
    report: Reporter = field(default_factory=SilentReporter)
    disk_low: threading.Event = field(default_factory=threading.Event)  # set while the run folder's disk is nearly full
    by_hand: bool = False  # a user's script runs the role, and no supervisor ends the run
    # Set before `stop` by a supervisor that ends the run; `stop` alone may be set because only this role ends.
    run_ends: threading.Event = field(default_factory=threading.Event)

    def warn(self, text: str) -> None:
        """One line that the user sees at once: something is wrong, and the run goes on."""
        self.report.event(Event.WARNING, {"text": text})


_current: ContextVar[RoleContext | None] = ContextVar("dreamfleet_role", default=None)


def current_context() -> RoleContext:
    """The context of the role this thread runs; outside of any, a silent one that nobody stops."""
    return given_context() or RoleContext()


def given_context() -> RoleContext | None:
    """Return the context of the role this thread runs, None outside of any."""
    return _current.get()


def set_context(context: RoleContext) -> None:
    _current.set(context)


@contextmanager
def using_context(context: RoleContext) -> Iterator[None]:
    """Make this the context of the role for the length of the block."""
    before = _current.set(context)
    try:
        yield
    finally:
        _current.reset(before)
