"""A bound on events that come from what others send: so many a minute, and then how many there were besides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dreamfleet.core.events import Event

MAX_EVENTS = 20  # of one source in a minute
MINUTE_S = 60.0
LONGEST_REASON = 300

Happening = tuple[Event, Mapping[str, Any]]


class EventRateLimiter:
    """For one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since = now()
        self._events = 0
        self._left_out: dict[str, int] = {}  # by name

    def limit(self, event: Event, detail: Mapping[str, Any]) -> list[Happening]:
        """The event, unless there were too many in this minute; before it the count of those of the last one."""
        told = self.left_out()
        self._events += 1
        if self._events <= MAX_EVENTS:
            return [*told, (event, detail)]
        self._left_out[event] = self._left_out.get(event, 0) + 1
        return told

    def left_out(self) -> list[Happening]:
        """An event with the count of those that were left out, once their minute is over."""
        now = self._now()
        if now - self._since < MINUTE_S:
            return []
        counts, self._left_out = self._left_out, {}
        self._since, self._events = now, 0
        return [(Event.EVENTS_LEFT_OUT, counts)] if counts else []


def shown_reason(error: BaseException) -> str:
    """The text of an error that quotes what another machine sent, for events and the terminal."""
    text = "".join(filter(str.isprintable, str(error)[: 2 * LONGEST_REASON]))
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
