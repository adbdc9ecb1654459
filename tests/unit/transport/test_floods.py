"""A peer whose next message is there before the one before it is answered, so that the socket is never empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import REQUEST, encode
from dreamfleet.transport.server import Server

MALFORMED = b"DF\xff" + bytes(13)  # of another version of the protocol, so that it is answered


@pytest.fixture
def address(tmp_path: Path) -> str:
    """In-process: what was sent is in the server's queue."""
    return f"inproc://{tmp_path}"


class Flood:
    """Sends without reading the answers."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address)
        self._frame = b"".join(encode(REQUEST, 1, "add", {"x": np.zeros(4)}))
        self.sends = True

    def add(self, data: Arrays | None = None) -> None:
        self._send(self._frame)

    def malformed(self) -> None:
        self._send(MALFORMED)

    def _send(self, frame: bytes) -> None:
        if self.sends:
            try:
                self._socket.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                self.sends = False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def flood(address: str) -> Iterator[Flood]:
    flood = Flood(address)
    yield flood
    flood.close()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, name="client", timeout_s=20) as client:
        yield client


def batch_server(address: str, flood: Flood) -> BatchServer:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=16)
    server.bind("add", flood.add)
    return server


def act(client: Client) -> float:
    reply = client.call("act", {"x": np.ones(1)}).result(5)
    return float(reply["x"][0])


def test_a_batch_is_answered_while_a_peer_sends_valid_requests_without_end(
    address: str, client: Client, flood: Flood
) -> None:
    with batch_server(address, flood):
        flood.add()
        assert [act(client) for _ in range(3)] == [1.0] * 3
        flood.sends = False


def test_notices_are_sent_while_a_peer_sends_requests_without_end(address: str, flood: Flood) -> None:
    with Client(address, name="first", timeout_s=20) as client:
        server = BatchServer(address, name="server")
        server.bind_batch("act", lambda batch, rows: batch, lambda *_: server.notify_pending(), max_rows=16)
        server.bind("add", flood.add)
        with server:
            flood.add()
            assert [act(client) for _ in range(2)] == [1.0] * 2
            flood.sends = False


@pytest.mark.parametrize("batches", [True, False])
def test_a_call_is_answered_while_a_peer_sends_malformed_messages_without_end(
    address: str, client: Client, flood: Flood, monkeypatch: pytest.MonkeyPatch, batches: bool
) -> None:
    server: Any = batch_server(address, flood) if batches else Server(address, name="server")
    if not batches:
        server.bind("act", lambda arrays: arrays)
    send = server._router.send

    def answer(peer: bytes, frames: Any) -> None:
        flood.malformed()
        send(peer, frames)

    monkeypatch.setattr(server._router, "send", answer)
    with server:
        flood.malformed()
        assert act(client) == 1.0
        assert server.stats()["malformed"] > 0
        flood.sends = False


def test_a_server_closes_while_a_peer_sends_requests_without_end(
    address: str, client: Client, flood: Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamfleet.transport.service._CLOSING_S", 0.1)
    server = batch_server(address, flood)
    refuse = server._refuse_closed

    def answer(request: Any) -> None:
        flood.add()
        refuse(request)

    monkeypatch.setattr(server, "_refuse_closed", answer)
    server.start()
    flood.add()
    act(client)
    server.close()
    assert flood.sends
