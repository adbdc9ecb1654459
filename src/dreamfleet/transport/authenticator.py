"""Admits clients to secured servers: answers ZeroMQ's authentication requests (ZAP, rfc.zeromq.org/spec/27).

ZeroMQ asks at one fixed in-process address per context, so the servers of a context share an authenticator. It has a
thread of its own: a server that computes for a minute must not keep clients waiting in their handshake.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

_ENDPOINT = "inproc://zeromq.zap.01"
_FRAMES = 7  # version, request id, domain, address, identity, mechanism, client key

_authenticators: dict[zmq.Context[zmq.Socket[bytes]], Authenticator] = {}
_lock = threading.Lock()  # guards _authenticators and the domains of every authenticator in it


IsAllowed = Callable[[str], bool]


def allow(context: zmq.Context[zmq.Socket[bytes]], domain: str, is_allowed: IsAllowed) -> None:
    """Make sockets with this ZAP domain accept exactly the clients for whose public key `is_allowed` returns true.

    It is called in the authenticator's thread. The key stands in every frame of such a client as its `User-Id`.
    """
    with _lock:
        authenticator = _authenticators.get(context)
        if authenticator is None:
            authenticator = _authenticators[context] = Authenticator(context)
        authenticator.domains[domain.encode()] = is_allowed


def revoke(context: zmq.Context[zmq.Socket[bytes]], domain: str) -> None:
    """Forget a domain; the last one ends the authenticator's thread."""
    with _lock:
        authenticator = _authenticators.get(context)
        if authenticator is None or authenticator.domains.pop(domain.encode(), None) is None or authenticator.domains:
            return
        del _authenticators[context]
        authenticator.close()  # before the next one may be made: they have one address


class Authenticator:
    """The thread behind `allow` and `revoke`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.domains: dict[bytes, IsAllowed] = {}
        self._socket = context.socket(zmq.REP, socket_class=zmq.Socket)
        self._socket.linger = 0
        self._socket.bind(_ENDPOINT)
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="authenticator", daemon=True)
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
        is_allowed = self.domains.get(domain)
        if key and is_allowed and is_allowed(key.decode()):
            return [version, request_id, b"200", b"OK", key, b""]
        return [version, request_id, b"400", b"unknown client key", b"", b""]
