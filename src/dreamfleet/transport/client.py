"""The caller's end: requests out, futures back. Has no thread of its own; the caller's thread does the waiting."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import zmq

from dreamfleet.core.errors import (
    DeadlineExceeded,
    Disconnected,
    DreamfleetError,
    ProtocolError,
    SecurityError,
    Stopped,
    TransportError,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.stop import Stop
from dreamfleet.transport.address import choose_address
from dreamfleet.transport.codec import REPLY, REQUEST, Outgoing, RemoteFailure, decode, encode, peek_request_id
from dreamfleet.transport.layout import Buffer
from dreamfleet.transport.link import Link
from dreamfleet.transport.security import ClientSecurity


class Future:
    """The answer to one request, now or later."""

    __slots__ = ("__weakref__", "_client", "_error", "_result", "method", "open")

    def __init__(self, client: Client, method: str) -> None:
        self.method = method
        self.open = True  # neither a result nor an error yet
        self._client = client
        self._result: Arrays | None = None
        self._error: DreamfleetError | None = None

    def done(self) -> bool:
        """Whether the answer is here. Takes in what has arrived, never waits."""
        if self.open:
            self._client.take_in()
        return not self.open

    def result(self, timeout_s: float | None = None) -> Arrays:
        """Waits for the answer, by default as long as the client's `timeout_s`.

        Raises the server's error, DeadlineExceeded (a later answer is dropped), Disconnected, or Stopped.
        """
        if self.open:
            self._client.await_future(self, timeout_s)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._result is None:
            raise TransportError(f"the error of this call of {self.method!r} was raised before")
        return self._result

    def resolve(self, result: Arrays) -> None:
        self.open = False
        self._result = result

    def fail(self, error: DreamfleetError) -> None:
        self.open = False
        self._error = error

    def __del__(self) -> None:
        if self._error is not None:
            self._client.keep_error(self._error)


class Client:
    """Calls the methods of one server.

    At most `max_inflight` requests are open; a further call first waits for one of them, which is the back-pressure. The
    error of a future that was dropped without asking for its result is raised by the next `call`, `send` or `check`, once.

    When the connection is lost, every open request fails with Disconnected: whether the server has seen it is unknown. The
    client reconnects by itself. Requests made in the meantime wait for the connection until their deadline.

    A client belongs to one thread at a time. Two threads inside it at once is an error; handing it over is fine.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        name: str,
        security: ClientSecurity | None = None,
        max_inflight: int = 8,
        timeout_s: float = 60.0,
        stop: Stop | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        chosen = choose_address(address)
        self.name = name
        self.address = str(chosen)
        self.timeout_s = timeout_s
        if not chosen.is_local and security is None:
            raise SecurityError(f"client {name}: {chosen} needs keys: pass security, or use an ipc address")
        self._max_inflight = max_inflight
        self._stop = stop
        self._in_use = threading.Lock()  # held by the thread inside the client
        self._ids = itertools.count(1)
        self._inflight: dict[int, Future] = {}
        self._dropped_errors: deque[DreamfleetError] = deque()
        self._counts = {"sent": 0, "received": 0, "errors": 0, "malformed": 0, "bytes_out": 0, "bytes_in": 0}
        self._wait_s = 0.0
        self._closed = False
        self._link = Link(chosen, None if chosen.is_local else security, stop, context or zmq.Context.instance())

    def call(self, method: str, arrays: Mapping[str, np.ndarray] | None = None) -> Future:
        """Sends a request. Arrays from 256 KiB on are sent from where they lie: leave them unchanged until the answer."""
        with self._exclusive():
            self._before_sending(method)
            request_id = next(self._ids)
            return self._send(request_id, method, encode(REQUEST, request_id, method, arrays or {}), copy=False)

    def send(self, outgoing: Outgoing) -> Future:
        """Sends a prepared request, which may be refilled as soon as this returns."""
        with self._exclusive():
            self._before_sending(outgoing.method)
            request_id = next(self._ids)
            outgoing.number(request_id)
            return self._send(request_id, outgoing.method, outgoing.frames, copy=True)

    def check(self) -> None:
        """Raises the oldest error of a request whose future was dropped."""
        self.take_in()
        self._raise_dropped()

    def wait_connected(self, timeout_s: float | None = None) -> None:
        """Waits until the server has accepted the connection."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        with self._exclusive():
            deadline = time.monotonic() + seconds
            while not self._link.connected:
                self._wait(deadline, f"a connection within {seconds:g} s")

    def stats(self) -> dict[str, float]:
        return {
            **self._counts,
            "inflight": len(self._inflight),
            "reconnects": self._link.reconnects,
            "wait_s": self._wait_s,
        }

    def close(self) -> None:
        """Gives up open requests and the connection. May be repeated."""
        with self._exclusive(closing=True):
            if self._closed:
                return
            self._closed = True
            self._fail_open(Disconnected(f"client {self.name} was closed with calls in flight"))
            self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take_in(self) -> None:
        """Processes whatever has arrived, without waiting."""
        with self._exclusive():
            self._read(self._link.poll(0))

    def await_future(self, future: Future, timeout_s: float | None) -> None:
        seconds = self.timeout_s if timeout_s is None else timeout_s
        with self._exclusive():
            deadline = time.monotonic() + seconds
            try:
                while future.open:
                    self._wait(deadline, f"the answer to {future.method!r} within {seconds:g} s")
            except DeadlineExceeded:
                self._forget(future)
                raise

    def keep_error(self, error: DreamfleetError) -> None:
        """Keeps the error of a dropped future. One lost connection fails many futures with one error: it counts once."""
        if not self._closed and not any(error is kept for kept in self._dropped_errors):
            self._dropped_errors.append(error)

    @contextlib.contextmanager
    def _exclusive(self, closing: bool = False) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise TransportError(f"client {self.name} is used by two threads at once: give each thread its own client")
        try:
            if self._closed and not closing:
                raise TransportError(f"client {self.name} is closed")
            yield
        finally:
            self._in_use.release()

    def _before_sending(self, method: str) -> None:
        self._raise_dropped()
        if len(self._inflight) >= self._max_inflight:
            deadline = time.monotonic() + self.timeout_s
            while len(self._inflight) >= self._max_inflight:
                self._wait(deadline, f"room for {method!r} among {self._max_inflight} open calls within {self.timeout_s:g} s")
            self._raise_dropped()

    def _raise_dropped(self) -> None:
        if self._dropped_errors:
            raise self._dropped_errors.popleft()

    def _send(self, request_id: int, method: str, frames: list[Buffer], copy: bool) -> Future:
        future = Future(self, method)
        if not self._link.send(frames, copy):
            # The queue is full of requests nobody takes: a new connection drops them.
            self._lose_connection("its queue is full")
            if not self._link.send(frames, copy):
                raise Disconnected(f"client {self.name}: {self.address} takes no requests")
        self._inflight[request_id] = future
        self._counts["sent"] += 1
        self._counts["bytes_out"] += len(frames[0])
        return future

    def _wait(self, deadline: float, what: str) -> None:
        """One round of waiting: returns after something happened, raises when nothing may be waited for any more."""
        start = time.monotonic()
        ready = self._link.poll(max(0.0, deadline - start))
        now = time.monotonic()
        self._wait_s += now - start
        self._read(ready)
        if not ready:
            if now >= deadline:
                reason = self._link.trouble()
                raise DeadlineExceeded(f"client {self.name} did not get {what} from {self.address}{reason}")
        elif not self._link.readable(ready) and self._stop is not None and self._stop.is_set():
            raise Stopped(f"client {self.name} was asked to stop while waiting for {what}")

    def _read(self, ready: list[Any]) -> None:
        if self._link.readable(ready):
            self._receive_all()
        if self._link.changed(ready) and self._link.lost():
            self._receive_all()  # answers that came before the connection broke still count
            self._lose_connection("the connection was lost")

    def _receive_all(self) -> None:
        while frames := self._link.receive():
            self._accept(frames[0], frames[1:])

    def _accept(self, frame: bytes, large: list[Any]) -> None:
        self._counts["bytes_in"] += len(frame)
        try:
            message = decode(frame, large)
            if not isinstance(message, RemoteFailure) and message.kind != REPLY:
                raise ProtocolError("a server may send replies only")
        except ProtocolError as error:
            self._counts["malformed"] += 1
            self._settle(peek_request_id(frame), error=error)
            return
        if isinstance(message, RemoteFailure):
            self._settle(message.request_id, error=message.error)
        else:
            self._settle(message.request_id, result=message.arrays())

    def _settle(
        self, request_id: int | None, result: Arrays | None = None, error: DreamfleetError | None = None
    ) -> None:
        future = self._inflight.pop(request_id, None) if request_id is not None else None
        if future is None:
            return  # the answer to a call that has passed its deadline
        if error is not None:
            self._counts["errors"] += 1
            future.fail(error)
        else:
            self._counts["received"] += 1
            future.resolve(result or {})

    def _lose_connection(self, why: str) -> None:
        self._link.renew()
        self._fail_open(Disconnected(f"client {self.name}: {why} to {self.address} with calls in flight"))

    def _fail_open(self, error: DreamfleetError) -> None:
        self._counts["errors"] += len(self._inflight)
        while self._inflight:
            self._inflight.popitem()[1].fail(error)

    def _forget(self, future: Future) -> None:
        for request_id, other in list(self._inflight.items()):
            if other is future:
                del self._inflight[request_id]
