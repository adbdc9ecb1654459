"""The server's end of the wire: one ROUTER socket, owned by one thread, that survives malformed messages."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket as unix
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.backend import zmq_poll

from dreamfleet.core.errors import AddressError, ProtocolError, SecurityError
from dreamfleet.core.stop import Stop
from dreamfleet.transport import authenticator
from dreamfleet.transport.address import Address, parse_address, split_addresses
from dreamfleet.transport.codec import REQUEST, Message, decode, encode_error, peek_request_id
from dreamfleet.transport.layout import Buffer
from dreamfleet.transport.monitor import Monitor
from dreamfleet.transport.security import Methods, ServerSecurity
from dreamfleet.transport.sockets import (
    HANDSHAKE_MS,
    MAX_FRAME_BYTES,
    NOBLOCK,
    NOBLOCK_MORE,
    POLLIN,
    QUEUE_MESSAGES,
    make_socket,
    receive_frames,
    send_frame,
    send_frames,
)

MAX_RECEIVE_MESSAGES, MAX_RECEIVE_S = 256, 0.005  # what the loop receives before it does its other work
_MAX_FRAMES = 1024
_QUEUE_BYTES = 32 << 20  # of one peer, while the loop is busy
_MIN_QUEUED = 8
_LINGER_MS = 500  # last replies get this long to leave after close
_unique = itertools.count()


class Router:
    """Receives requests and sends replies.

    All methods belong to the thread that runs the server's loop, except `hand_over` and `wake`, which any thread may
    call: they leave frames in a queue and end the loop's `wait`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        name: str,
        security: ServerSecurity | None,
        stop: Stop | None,
        context: zmq.Context[zmq.Socket[bytes]] | None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.name = name
        self._max_frame_bytes = max_frame_bytes
        # Local addresses first: a bind takes over the socket's options as they are, and theirs are without keys.
        parsed = [parse_address(text) for text in split_addresses(addresses)]
        self.addresses = sorted(parsed, key=lambda address: not address.is_local)
        if security is None and not self.addresses[-1].is_local:
            raise SecurityError(f"server {name}: {self.addresses[-1]} needs keys: pass security, or use an ipc address")
        self._security = security
        self._context = context or zmq.Context.instance()
        self._domain = f"{name}-{next(_unique)}"
        self._stop = stop
        self._wake_lock = threading.Lock()  # guards _awake and the pipe's descriptors
        self._awake = False
        self._outbox: deque[tuple[bytes, list[Buffer]]] = deque()
        self._checks = (
            False  # whether a client has come whose key may not call everything; set by the authenticator's thread
        )
        self._open_methods = _open_methods(security)
        self.identified: set[str] = set()  # methods whose requests say whether their client's key is limited
        self._turn_messages = 0  # that may be received yet
        self._turn_ends = 0.0
        self.malformed = 0
        self.forbidden = 0  # calls of methods that the client's key may not call
        self.bytes_in = 0
        self.bytes_out = 0

    def open(self) -> None:
        """Binds every address, or raises AddressError and leaves nothing behind."""
        self._socket = make_socket(self._context, zmq.ROUTER)
        self._socket.linger = _LINGER_MS
        self._socket.handshake_ivl = HANDSHAKE_MS
        self._socket.maxmsgsize = self._max_frame_bytes
        if self._max_frame_bytes < MAX_FRAME_BYTES:
            queued = _QUEUE_BYTES // self._max_frame_bytes
            self._socket.rcvhwm = max(_MIN_QUEUED, min(QUEUE_MESSAGES, queued))
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._awake = True
        self._endpoints: dict[Address, Any] = {}  # the names under which ZeroMQ knows the addresses
        bound: list[Address] = []
        try:
            for address in self.addresses:
                self._bind(address)
                bound.append(address)
        except BaseException:
            self._shut(bound)
            raise
        wakes: list[Any] = [self._wake_read] if self._stop is None else [self._wake_read, self._stop.fileno()]
        self._wakes = [(source, POLLIN) for source in wakes]
        self._all = [(self._socket, POLLIN), *self._wakes]

    def close(self) -> None:
        self._shut(self.addresses)

    def begin_receiving(self, messages: int = MAX_RECEIVE_MESSAGES, seconds: float = MAX_RECEIVE_S) -> None:
        """Allows so much to be received: a peer that never stops sending must not keep the loop from its other work."""
        self._turn_messages = messages
        self._turn_ends = time.monotonic() + seconds

    def receive(self) -> Message | None:
        """The next well-formed request, or None: there is none, or the turn is over.

        Malformed ones are counted and answered on the way. What is left at the end of a turn ends the next `wait`.
        """
        socket = self._socket
        while self._turn_messages > 0 and time.monotonic() < self._turn_ends:
            self._turn_messages -= 1
            try:
                peer = socket.recv(NOBLOCK)
            except zmq.Again:
                return None
            first, large = receive_frames(socket)
            frame = first.bytes
            self.bytes_in += len(frame)
            try:
                request = self._open_request(frame, large)
            except ProtocolError as error:
                self.malformed += 1
                request_id = peek_request_id(frame)
                if request_id is not None:
                    self.send(peer, encode_error(request_id, error))
                continue
            request.peer = peer
            if self._checks:
                method = request.layout.method
                if method not in self._open_methods and (refusal := self._refusal(first, method)):
                    self.forbidden += 1
                    self.send(peer, encode_error(request.request_id, refusal))
                    continue
                if method in self.identified:
                    request.limited = self._methods(first) is not None
            return request
        return None

    def send(self, peer: bytes, frames: list[Buffer]) -> None:
        """Sends a reply; to a peer that has gone, or takes none, it is dropped."""
        try:
            send_frame(self._socket, peer, NOBLOCK_MORE)
            send_frames(self._socket, frames)
        except zmq.Again:
            return
        self.bytes_out += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    def hand_over(self, peer: bytes, frames: list[Buffer]) -> None:
        """Leaves a reply for the loop's thread to send. For any thread."""
        self._outbox.append((peer, frames))
        self.wake()

    def wake(self) -> None:
        """Ends the current or next `wait`. For any thread."""
        with self._wake_lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if self._awake:
                os.write(self._wake_write, b"x")

    def flush(self) -> None:
        """Sends what was handed over."""
        while self._outbox:
            self.send(*self._outbox.popleft())

    def wait(self, requests: bool = True) -> None:
        """Blocks until a request (unless told not to look for them), a hand-over, a `wake` or the stop switch."""
        for source, _ in zmq_poll(self._all if requests else self._wakes, -1):
            if source == self._wake_read:
                os.read(self._wake_read, 4096)

    def stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _is_allowed(self, key: str) -> bool:
        """Return whether a client with this key may connect. The authenticator calls it before the client can send."""
        allowed = self._security.allowed if self._security else {}
        if allowed.get(key) is not None:
            self._checks = True
        return key in allowed

    def _refusal(self, frame: zmq.Frame, method: str) -> SecurityError | None:
        """What to answer a client whose key may not call this method."""
        methods = self._methods(frame)
        if methods is None or method in methods:
            return None
        return SecurityError(
            f"this key may not call {method!r} of server {self.name}, only {', '.join(sorted(methods)) or 'nothing'}"
        )

    def _methods(self, frame: zmq.Frame) -> Methods:
        """What the client that sent this may call; None: everything."""
        assert self._security is not None  # else nobody comes over the network
        try:
            key = frame.get("User-Id")
        except zmq.ZMQError:  # a local connection: the authenticator gives a name to every other one
            return None
        return self._security.allowed.get(str(key), frozenset())

    def _open_request(self, frame: bytes, large: Sequence[Any]) -> Message:
        if len(large) > _MAX_FRAMES:
            raise ProtocolError(f"a message has {len(large)} frames, {_MAX_FRAMES} are allowed")
        self.bytes_in += sum(map(len, large)) if large else 0
        message = decode(frame, large)
        if not isinstance(message, Message) or message.kind != REQUEST:
            raise ProtocolError("only requests may be sent to a server")
        return message

    def _bind(self, address: Address) -> None:
        if address.scheme == "ipc":
            _clear_stale_file(address)
        if not address.is_local:
            self._secure()
        self._socket.ipv6 = address.is_ipv6  # else `*` would take every IPv6 address too
        try:
            self._socket.bind(str(address))
            self._endpoints[address] = self._socket.last_endpoint
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise _in_use(address) from None
            raise AddressError(f"server {self.name} cannot bind {address}: {error.strerror}") from None

    def _secure(self) -> None:
        assert self._security is not None  # checked on construction
        authenticator.allow(self._context, self._domain, self._is_allowed)
        self._socket.zap_domain = self._domain.encode()
        self._socket.zap_enforce_domain = True  # nobody gets in without an answer of the authenticator
        self._socket.curve_server = True
        self._socket.curve_publickey = self._security.public.encode()
        self._socket.curve_secretkey = self._security.secret.encode()

    def _shut(self, bound: Sequence[Address]) -> None:
        # ZeroMQ closes listeners in the background, and some builds unlink socket files then. Returning earlier would
        # let it remove the file of a server restarted at the same address. In-process addresses are free at once.
        monitor = Monitor(self._socket, zmq.EVENT_CLOSED | zmq.EVENT_CLOSE_FAILED)
        for address in bound:
            self._socket.unbind(self._endpoints[address])
        monitor.await_events(sum(address.scheme != "inproc" for address in bound), timeout_s=2.0)
        monitor.close()
        for address in bound:
            if address.scheme == "ipc":
                address.path.unlink(missing_ok=True)
        self._socket.close()
        authenticator.revoke(self._context, self._domain)
        with self._wake_lock:
            self._awake = False
            os.close(self._wake_read)
            os.close(self._wake_write)


def _open_methods(security: ServerSecurity | None) -> frozenset[str]:
    """The methods that every key may call which may not call all, so that no caller has to be identified."""
    limits = [methods for methods in security.allowed.values() if methods is not None] if security else []
    return frozenset.intersection(*limits) if limits else frozenset()


def _clear_stale_file(address: Address) -> None:
    """Removes the file a killed server left behind. ZeroMQ would also remove, and so hijack, one in use."""
    if not address.path.exists():
        if not address.path.parent.is_dir():
            raise AddressError(f"the folder of {address} does not exist: create {address.path.parent}")
        return
    if not address.path.is_socket():
        raise AddressError(f"{address} cannot be bound: {address.path} exists and is not a socket")
    with unix.socket(unix.AF_UNIX) as probe:
        try:
            probe.connect(str(address.path))
        except ConnectionRefusedError:
            address.path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise AddressError(f"{address} cannot be used: {error.strerror}") from None
    raise _in_use(address)


def _in_use(address: Address) -> AddressError:
    return AddressError(f"address {address} is in use: end the server that holds it, or choose another address")
