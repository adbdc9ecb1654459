"""A client's connection: one DEALER socket that is replaced when the connection breaks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.backend import zmq_poll

from dreamfleet.core.errors import AddressError
from dreamfleet.core.files.open_files import is_out_of_files
from dreamfleet.core.stop import Stop
from dreamfleet.transport.address import Address
from dreamfleet.transport.layout import Buffer
from dreamfleet.transport.monitor import Monitor
from dreamfleet.transport.security import ClientSecurity
from dreamfleet.transport.sockets import NOBLOCK, POLLIN, make_socket, send_frames

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
RETRY_S = 0.1
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _FAILED


class Link:
    """Knows the state of the connection.

    ZeroMQ would reconnect the same socket and then deliver requests whose callers were told long ago that they
    failed. A fresh socket drops them and has a fresh identity, so that no old answer can arrive either.
    """

    def __init__(
        self,
        address: Address,
        security: ClientSecurity | None,
        stop: Stop | None,
        context: zmq.Context[zmq.Socket[bytes]],
    ) -> None:
        self._address = address
        self._security = security
        self._stop = stop
        self._context = context
        self.reconnects = 0
        self._open()

    def _open(self) -> None:
        # In-process connections have no handshake and no events.
        self.connected = self._address.scheme == "inproc"
        self._refused = False
        self._socket = make_socket(self._context, zmq.DEALER)
        self._socket.linger = 0
        self._socket.ipv6 = self._address.is_ipv6
        if self._security is not None:
            self._security.apply(self._socket)
        try:
            self._monitor = Monitor(self._socket, _EVENTS)
        except zmq.ZMQError:
            self._socket.close()
            raise
        try:
            self._socket.connect(str(self._address))
        except zmq.ZMQError as error:
            self.close()
            raise AddressError(f"cannot connect to {self._address}: {error.strerror}") from None
        self._sources: list[Any] = [(self._socket, POLLIN), (self._monitor.socket, POLLIN)]
        if self._stop is not None:
            self._sources.append((self._stop.fileno(), POLLIN))

    def close(self) -> None:
        self._monitor.close()
        self._socket.close()

    def renew(self, timeout_s: float) -> None:
        """Opens a fresh socket. A process that has no descriptor left waits for one."""
        self.close()
        self.reconnects += 1
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._open()
            except zmq.ZMQError as error:
                if not is_out_of_files(error) or time.monotonic() >= deadline:
                    raise
            if self._stop is not None:
                self._stop.check()
            time.sleep(RETRY_S)

    def poll(self, timeout_s: float) -> tuple[bool, bool]:
        """Waits for something to happen; returns whether a message has arrived and whether the connection changed."""
        # Rounded up: waking a fraction of a millisecond early would spin until the deadline.
        ready = zmq_poll(self._sources, math.ceil(timeout_s * 1000))
        if len(ready) == 1 and ready[0][0] is self._socket:
            return True, False
        sources = [source for source, _ in ready]
        return self._socket in sources, self._monitor.socket in sources

    def lost(self) -> bool:
        """Takes in connection events; whether one of them was the end of an established connection."""
        lost = False
        for event in self._monitor.events():
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
            elif event == zmq.EVENT_DISCONNECTED:
                lost = lost or self.connected
                self.connected = False
            else:
                self._refused = True
        return lost

    def trouble(self) -> str:
        """What is known about a server that does not answer, to end an error message with."""
        if self.connected:
            return ""
        return ": it refuses this client's keys" if self._refused else ": not connected, is the server running?"

    def send(self, frames: Sequence[Buffer], copy: bool) -> bool:
        """Whether the queue took the message."""
        try:
            send_frames(self._socket, frames, copy)
        except zmq.Again:
            return False
        return True

    def receive(self) -> bytes | None:
        """The first frame of the next message, if there is one."""
        try:
            return self._socket.recv(NOBLOCK)
        except zmq.Again:
            return None

    def receive_large(self) -> list[Any]:
        """The other frames of the message, one for each large array, as they lie in ZeroMQ's memory."""
        frames: list[Any] = []
        while self._socket.get(zmq.RCVMORE):
            frames.append(self._socket.recv(NOBLOCK, False))
        return frames
