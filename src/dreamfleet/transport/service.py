"""What both servers share: the life of the loop thread, error replies and the handling of failures."""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Required, TypedDict, TypeVar, Unpack

import zmq

from dreamfleet.core.errors import DeadlineExceeded, Disconnected, TransportError, UnknownMethod
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.stop import Stop
from dreamfleet.transport.codec import Message, encode_error
from dreamfleet.transport.router import Router
from dreamfleet.transport.security import ServerSecurity
from dreamfleet.transport.sockets import MAX_FRAME_BYTES

Reply = Arrays | tuple[Arrays, Any] | None  # what a handler returns; the second part of a pair stays on the server
OnError = Callable[[BaseException], None]

_CLOSING_S = 1.0  # for answers to requests that were not started

_Self = TypeVar("_Self", bound="Service")


class ServiceOptions(TypedDict, total=False):
    """Keyword arguments of every server."""

    name: Required[str]  # in thread names, errors and statistics
    security: ServerSecurity | None  # needed for tcp addresses
    stop: Stop | None  # ends the server when set
    context: zmq.Context[zmq.Socket[bytes]] | None  # ZeroMQ's, by default that of the process
    on_error: OnError | None
    max_frame_bytes: int  # a larger frame costs a peer its connection, and its queue is shorter the larger they are


class Service(ABC):
    """A named server with a loop thread.

    It ends by `close`, or by itself once `stop` is set. Errors in handlers go to the caller. Errors in post-functions
    have no caller: the first is kept in `failure` and each is passed to `on_error`, for the role to end on.
    """

    def __init__(self, addresses: str | Sequence[str], **options: Unpack[ServiceOptions]) -> None:
        self.name = options["name"]
        self.failure: BaseException | None = None
        self._on_error = options.get("on_error")
        self._router = Router(
            addresses,
            name=self.name,
            security=options.get("security"),
            stop=options.get("stop"),
            context=options.get("context"),
            max_frame_bytes=options.get("max_frame_bytes", MAX_FRAME_BYTES),
        )
        self._closing = False
        self._threads: list[threading.Thread] = []

    @property
    def addresses(self) -> list[str]:
        return [str(address) for address in self._router.addresses]

    def start(self) -> None:
        """Binds, which may raise AddressError, and serves from threads of its own."""
        if self._threads:
            raise TransportError(f"server {self.name} was started before")
        self._router.open()
        self._threads = [threading.Thread(target=self._run, name=f"{self.name}-loop", daemon=True), *self._workers()]
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Lets running handlers finish and gives the addresses back. May be repeated."""
        self._closing = True
        loop = self._threads[0] if self._threads else None
        if loop is not None and loop.is_alive():
            self._router.wake()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            raise DeadlineExceeded(f"server {self.name}: {', '.join(late)} did not end within {timeout_s:g} s")

    def __enter__(self: _Self) -> _Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def _workers(self) -> list[threading.Thread]:
        """Threads besides the loop's; not started yet."""

    @abstractmethod
    def _serve(self) -> None:
        """Serves until `_ending`; runs on the loop thread."""

    @abstractmethod
    def _drain(self) -> None:
        """Ends the workers, giving up requests that were not started; runs on the loop thread after `_serve`."""

    def _ending(self) -> bool:
        return self._closing or self._router.stopped()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # a bug in the loop itself must reach the role, not die with the thread
            self._fail(error)
        finally:
            self._router.begin_receiving(sys.maxsize, _CLOSING_S)
            while (request := self._router.receive()) is not None:
                self._refuse_closed(request)
            self._drain()
            self._router.flush()
            self._router.close()

    def _refuse(self, request: Message, error: Exception) -> None:
        """Answers with an error; for the loop thread."""
        self._router.send(request.peer, encode_error(request.request_id, error))

    def _refuse_unknown(self, request: Message, known: Sequence[str]) -> None:
        method = request.layout.method
        self._refuse(
            request, UnknownMethod(f"server {self.name} has no method {method!r}, only {', '.join(sorted(known))}")
        )

    def _refuse_closed(self, request: Message) -> None:
        self._refuse(request, Disconnected(f"server {self.name} closed before it came to {request.layout.method!r}"))

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        if self._on_error is not None:
            self._on_error(error)


def reply_of(result: Reply) -> Arrays:
    """The part of a handler's result that travels back."""
    reply = result[0] if isinstance(result, tuple) else result
    return {} if reply is None else reply
