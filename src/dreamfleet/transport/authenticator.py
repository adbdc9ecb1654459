"""Admits clients to secured servers: answers ZeroMQ's authentication requests (ZAP, rfc.zeromq.org/spec/27).

ZeroMQ asks at one fixed in-process address per context, so the servers of a context share a gate. It has a thread of
its own: a server that computes for a minute must not keep clients waiting in their handshake.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

_ENDPOINT = "inproc://zeromq.zap.01"
_FRAMES = 7  # version, request id, domain, address, identity, mechanism, client key

_gates: dict[zmq.Context[zmq.Socket[bytes]], Gate] = {}
_lock = threading.Lock()  # guards _gates and the domains of every gate in it


Admits = Callable[[str], bool]


def admit(context: zmq.Context[zmq.Socket[bytes]], domain: str, admits: Admits) -> None:
    """From now on sockets with this ZAP domain accept exactly the clients whose public key `admits` returns true for.

    It is called in the gate's thread. The key stands in every frame of such a client as its `User-Id`.
    """
    with _lock:
        gate = _gates.get(context)
        if gate is None:
            gate = _gates[context] = Gate(context)
        gate.domains[domain.encode()] = admits


def dismiss(context: zmq.Context[zmq.Socket[bytes]], domain: str) -> None:
    """Forgets a domain; the last one ends the gate's thread."""
    with _lock:
        gate = _gates.get(context)
        if gate is None or gate.domains.pop(domain.encode(), None) is None or gate.domains:
            return
        del _gates[context]
        gate.close()  # before the next one may be made: they have one address


class Gate:
    """The thread behind `admit` and `dismiss`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.domains: dict[bytes, Admits] = {}
        self._socket = context.socket(zmq.REP, socket_class=zmq.Socket)
        self._socket.linger = 0
        self._socket.bind(_ENDPOINT)
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="transport-gate", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.write(self._wake_write, b"x")
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        while self._wake_read not in dict(poller.poll()):
            self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        self._socket.unbind(_ENDPOINT)  # at once; closing leaves that to a thread of ZeroMQ's
        self._socket.close()

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        version, request_id, domain, _, _, mechanism = frames[: _FRAMES - 1]
        key = z85.encode(frames[-1]) if mechanism == b"CURVE" and len(frames) == _FRAMES else b""
        admits = self.domains.get(domain)
        if key and admits and admits(key.decode()):
            return [version, request_id, b"200", b"OK", key, b""]
        return [version, request_id, b"400", b"unknown client key", b"", b""]
