"""The answer to one request, now or later. The client does the waiting."""

from __future__ import annotations

from typing import Protocol

from dreamfleet.core.errors import DreamfleetError, TransportError
from dreamfleet.core.interfaces import Arrays


class FutureOwner(Protocol):
    """What a future asks of the client that made it."""

    def poll(self) -> None: ...

    def await_future(self, future: Future, timeout_s: float | None) -> None: ...

    def keep_error(self, error: DreamfleetError) -> None: ...


class Future:
    """The answer to one request, now or later."""

    __slots__ = ("__weakref__", "_error", "_owner", "_result", "method", "open")

    def __init__(self, owner: FutureOwner, method: str) -> None:
        self.method = method
        self.open = True  # neither a result nor an error yet
        self._owner = owner
        self._result: Arrays | None = None
        self._error: DreamfleetError | None = None

    def done(self) -> bool:
        """Whether the answer is here. Takes in what has arrived, never waits."""
        if self.open:
            self._owner.poll()
        return not self.open

    def result(self, timeout_s: float | None = None) -> Arrays:
        """Waits for the answer, by default as long as the client's `timeout_s`.

        Raises the server's error, DeadlineExceeded (a later answer is dropped), Disconnected, or Stopped.
        """
        if self.open:
            self._owner.await_future(self, timeout_s)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._result is None:
            raise TransportError(f"this call of {self.method!r} has failed and its error was raised before")
        return self._result

    def resolve(self, result: Arrays) -> None:
        self.open = False
        self._result = result

    def fail(self, error: DreamfleetError) -> None:
        self.open = False
        self._error = error
        self.__class__ = _FailedFuture


class _FailedFuture(Future):
    """Tells its owner when it is dropped unasked. A class of its own, since a finaliser would cost every future."""

    __slots__ = ()

    def __del__(self) -> None:
        if self._error is not None:
            self._owner.keep_error(self._error)
