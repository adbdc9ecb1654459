"""Calls between roles that share a thread: the handler itself, in the place of a client and its server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.client import Client
from dreamfleet.transport.server import Server

Handler = Callable[[Arrays], Arrays | None]


class Answer:
    """What a handler returns. One that is `late` is called when the answer is asked for, and not before."""

    def __init__(self, handler: Handler, data: Arrays, late: bool) -> None:
        self._handler = handler
        self._data = data
        self._late = late
        self._result: Arrays = {}
        if not late:
            self._call()

    def done(self) -> bool:
        return not self._late

    def result(self, timeout_s: float | None = None) -> Arrays:
        if self._late:
            self._late = False
            self._call()
        return self._result

    def _call(self) -> None:
        self._result = self._handler(self._data) or {}


class DirectCalls:
    """Has of a client what roles use of it, and of a server the metrics they show. Nothing is ever on its way.

    A role that asks ahead, as the learner does for batches, must get them `late`: what it asks for now would otherwise
    be drawn from steps that are older than those there are when it is used.
    """

    def __init__(self, *handlers: Callable[..., Any], late: bool = False) -> None:
        self._handlers = {handler.__name__: handler for handler in handlers}
        self._late = late
        self.timeout_s = 0.0

    def call(self, method: str, arrays: Mapping[str, np.ndarray] | None = None) -> Answer:
        return Answer(self._handlers[method], dict(arrays or {}), self._late)

    def poll(self) -> None: ...

    def wait_connected(self, timeout_s: float | None = None) -> None: ...

    def close(self) -> None: ...

    def stats(self) -> dict[str, float]:
        return {"inflight": 0, "wait_s": 0.0}


def direct_client(*handlers: Callable[..., Any], late: bool = False) -> Client:
    """For a role that expects a client; the methods are called by the handlers' names."""
    return cast(Client, DirectCalls(*handlers, late=late))


def no_server() -> Server:
    """For a role that shows the metrics of its server."""
    return cast(Server, DirectCalls())
