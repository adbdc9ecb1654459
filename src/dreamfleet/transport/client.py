"""The caller's end: requests out, futures back. Has no thread of its own; the caller's thread does the waiting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

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
from dreamfleet.core.stop import Stop
from dreamfleet.transport.address import choose_address
from dreamfleet.transport.codec import (
    REPLY,
    REQUEST,
    Pending,
    PreparedRequest,
    RemoteFailure,
    decode_first,
    encode,
    peek_request_id,
)
from dreamfleet.transport.future import Future
from dreamfleet.transport.layout import Buffer
from dreamfleet.transport.link import Link
from dreamfleet.transport.security import ClientSecurity

__all__ = ["Client", "Future"]

_IDLE_S = 0.01  # a client that did not wait for this long may have missed the loss of its connection


class Client:
    """Calls the methods of one server.

    At most `max_inflight` requests are open; a further call first waits for one of them, which is the back-pressure.
    The error of a future that was dropped without asking for its result is raised by the next `call`, `send` or
    `check`, once.

    The deadline of a wait counts from the last answer to a call of that method, or the last notice that one is pending:
    the server works on them in turn. Its handler sends notices while it waits for good reason, and none if it hangs.
    `on_pending` is called with every notice, in the thread that uses the client.

    When the connection is lost, every open request fails with Disconnected: whether the server has seen it is
    unknown. The client reconnects by itself. Requests made in the meantime wait for the connection until their
    deadline. With `tells_losses` the next `call`, `send` or `check` raises Disconnected also when nothing was open: for
    a caller to whom another server at the same address, which may hold less, is not the same.

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
        tells_losses: bool = False,
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
        self._tells_losses = tells_losses
        self._in_use = threading.Lock()  # held by the thread inside the client
        self._last_id = 0
        self._inflight: dict[int, Future] = {}
        self._heard: dict[str, float] = {}  # by method: when the last answer or notice came
        self.on_pending: Callable[[], None] | None = None
        self._dropped_errors: deque[DreamfleetError] = deque()
        self._sent = self._received = self._errors = self._malformed = self._bytes_out = self._bytes_in = 0
        self._wait_s = 0.0
        self._polled_at = 0.0
        self._closed = False
        self._link = Link(chosen, None if chosen.is_local else security, stop, context or zmq.Context.instance())

    def call(self, method: str, arrays: Mapping[str, np.ndarray] | None = None) -> Future:
        """Sends a request. Arrays from 256 KiB on are sent without a copy: leave them unchanged until the answer."""
        self._enter()
        try:
            request_id = self._next_id(method)
            return self._send(request_id, method, encode(REQUEST, request_id, method, arrays or {}), False)
        finally:
            self._in_use.release()

    def send(self, request: PreparedRequest) -> Future:
        """Sends a prepared request, which may be refilled as soon as this returns."""
        self._enter()
        try:
            request_id = self._next_id(request.method)
            request.number(request_id)
            return self._send(request_id, request.method, request.frames, True)
        finally:
            self._in_use.release()

    @property
    def full(self) -> bool:
        """Whether a further call would wait for an answer first, as far as answers were taken in."""
        return len(self._inflight) >= self._max_inflight

    def check(self) -> None:
        """Raises the oldest error of a request whose future was dropped."""
        self.poll()
        if self._dropped_errors:
            raise self._dropped_errors.popleft()

    def wait_connected(self, timeout_s: float | None = None) -> None:
        """Waits until the server has accepted the connection."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        with self._exclusive():
            deadline = time.monotonic() + seconds
            while not self._link.connected:
                self._wait(deadline, "a connection for", self.name, seconds)

    def stats(self) -> dict[str, float]:
        return {
            "sent": self._sent,
            "received": self._received,
            "errors": self._errors,
            "malformed": self._malformed,
            "bytes_out": self._bytes_out,
            "bytes_in": self._bytes_in,
            "inflight": len(self._inflight),
            "reconnects": self._link.reconnects,
            "wait_s": self._wait_s,
        }

    def close(self) -> None:
        """Gives up open requests and the connection. May be repeated."""
        if self._closed:
            return
        with self._exclusive():
            self._closed = True
            self._fail_open(Disconnected(f"client {self.name} was closed with calls in flight"))
            self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def poll(self) -> None:
        """Processes whatever has arrived, without waiting."""
        with self._exclusive():
            self._read_all()

    def await_future(self, future: Future, timeout_s: float | None) -> None:
        """Waits until the future is settled, by its answer or by the loss of the connection."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        self._enter()
        try:
            start, method = time.monotonic(), future.method
            while future.open:
                heard = max(start, self._heard.get(method, start))
                self._wait(heard + seconds, "the answer to", method, seconds)
        except DeadlineExceeded:
            self._abandon(future)
            raise
        finally:
            self._in_use.release()

    def keep_error(self, error: DreamfleetError) -> None:
        """Keeps the error of a dropped future. A lost connection fails many futures with one error, kept once."""
        if not self._closed and not any(error is kept for kept in self._dropped_errors):
            self._dropped_errors.append(error)

    def _enter(self) -> None:
        if not self._in_use.acquire(False):
            raise TransportError(f"client {self.name} is used by two threads at once: give each thread its own client")
        if self._closed:
            self._in_use.release()
            raise TransportError(f"client {self.name} is closed")

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._in_use.release()

    def _next_id(self, method: str) -> int:
        """The id for a new request, once there is room for it."""
        if self._stop is not None and self._stop.is_set():
            raise Stopped(f"client {self.name} was asked to stop before it called {method!r}")
        if self._dropped_errors:
            raise self._dropped_errors.popleft()
        if time.monotonic() - self._polled_at > _IDLE_S:
            self._read_all()
        if len(self._inflight) >= self._max_inflight:
            start, room = time.monotonic(), f"room among {self._max_inflight} open calls for"
            while len(self._inflight) >= self._max_inflight:
                heard = max(start, *self._heard.values(), start)
                self._wait(heard + self.timeout_s, room, method, self.timeout_s)
        if self._dropped_errors:  # of what was lost just now: nothing may be sent as if it had arrived
            raise self._dropped_errors.popleft()
        self._last_id += 1
        return self._last_id

    def _send(self, request_id: int, method: str, frames: list[Buffer], copy: bool) -> Future:
        if not self._link.send(frames, copy):
            # The queue is full of requests nobody takes: a new connection drops them.
            self._lose_connection("the queue is full")
            deadline = time.monotonic() + self.timeout_s
            while not self._link.send(frames, copy):  # a server that has refused this client's keys already
                self._wait(deadline, "a connection for", method, self.timeout_s)
        future = self._inflight[request_id] = Future(self, method)
        self._sent += 1
        self._bytes_out += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        return future

    def _wait(self, deadline: float, what: str, method: str, seconds: float) -> None:
        """One round of waiting: returns after something happened, raises when nothing may be waited for any more."""
        start = time.monotonic()
        message, event = self._link.poll(max(0.0, deadline - start))
        now = self._polled_at = time.monotonic()
        self._wait_s += now - start
        if message:
            frame = self._link.receive()
            if frame is not None:
                self._accept(frame)
        elif event:
            self._read_all()
        elif self._stop is not None and self._stop.is_set():
            raise Stopped(f"client {self.name} was asked to stop while it waited for {what} {method!r}")
        elif now >= deadline:
            trouble = self._link.trouble()
            raise DeadlineExceeded(
                f"client {self.name} did not get {what} {method!r} from {self.address} within {seconds:g} s{trouble}"
            )

    def _read_all(self) -> None:
        message, event = self._link.poll(0.0)
        self._polled_at = time.monotonic()
        lost = event and self._link.lost()
        # After the events: answers that came before the connection broke still count.
        while (message or lost) and (frame := self._link.receive()) is not None:
            self._accept(frame)
        if lost:
            self._lose_connection("the connection was lost")

    def _accept(self, frame: bytes) -> None:
        self._bytes_in += len(frame)
        try:
            message = decode_first(frame)
            if isinstance(message, RemoteFailure):
                self._fail(message.request_id, message.error)
                return
            if isinstance(message, Pending):
                self._note_pending(message)
                return
            if message.kind != REPLY:
                raise ProtocolError("a server may send replies only")
            if message.layout.large_frames or len(frame) != message.layout.frame_bytes:
                large = self._link.receive_large()
                self._bytes_in += sum(map(len, large))
                message.attach(large)
        except ProtocolError as error:
            self._link.receive_large()  # whatever else belongs to it
            self._malformed += 1
            self._fail(peek_request_id(frame), error)
            return
        future = self._inflight.pop(message.request_id, None)
        if future is not None:  # else the answer to a call that has passed its deadline
            self._received += 1
            self._heard[future.method] = self._polled_at
            future.resolve(message.arrays())

    def _note_pending(self, notice: Pending) -> None:
        future = self._inflight.get(notice.request_id)
        if future is not None:  # else the call was given up or answered
            self._heard[future.method] = self._polled_at
            if self.on_pending:
                self.on_pending()

    def _fail(self, request_id: int | None, error: DreamfleetError) -> None:
        future = None if request_id is None else self._inflight.pop(request_id, None)
        if future is not None:
            self._errors += 1
            future.fail(error)

    def _lose_connection(self, why: str) -> None:
        self._link.renew(self.timeout_s)
        calls = "with calls in flight" if self._inflight else "with no call in flight"
        error = Disconnected(f"client {self.name}: {why} to {self.address} {calls}")
        self._fail_open(error)
        if self._tells_losses:
            self.keep_error(error)

    def _fail_open(self, error: DreamfleetError) -> None:
        self._errors += len(self._inflight)
        while self._inflight:
            self._inflight.popitem()[1].fail(error)

    def _abandon(self, future: Future) -> None:
        """Frees the place of a request whose deadline has passed; its answer will find nobody."""
        future.open = False
        for request_id, other in list(self._inflight.items()):
            if other is future:
                del self._inflight[request_id]
