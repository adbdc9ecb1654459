"""Garbage against live servers: only the counter of malformed messages may change.

DREAMFLEET_FUZZ sets the number of frames per server (default 5,000).
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import REQUEST, encode
from dreamfleet.transport.server import Server

FRAMES = int(os.environ.get("DREAMFLEET_FUZZ", "5000"))
OBSERVATION = {"image": np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3), "reward": np.ones(1, np.float32)}


class Counted:
    """A server of either kind that counts the calls of its handler."""

    def __init__(self, kind: type[Server] | type[BatchServer], address: str) -> None:
        self.calls = 0
        self.server = kind(address, name="server")
        if isinstance(self.server, BatchServer):
            self.server.bind_batch("act", lambda batch, rows: self.count(batch), max_rows=4)
        else:
            self.server.bind("act", self.count)
        self.server.start()

    def count(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.calls += 1
        return arrays


@pytest.fixture(params=[Server, BatchServer])
def counted(request: pytest.FixtureRequest, address: str) -> Iterator[Counted]:
    counted = Counted(request.param, address)
    yield counted
    counted.server.close()


def malformed_messages(count: int, seed: int) -> Iterator[list[bytes]]:
    """Random bytes, random bytes behind a good header, good messages cut short, and good ones with frames too many."""
    rng = random.Random(seed)
    good = bytes(encode(REQUEST, 1, "act", OBSERVATION)[0])
    for index in range(count):
        kind = index % 4
        if kind == 0:
            yield [rng.randbytes(rng.randrange(200))]
        elif kind == 1:
            yield [good[:16] + rng.randbytes(rng.randrange(200))]
        elif kind == 2:
            yield [good[: rng.randrange(len(good))]]
        else:
            yield [good, *(rng.randbytes(rng.randrange(30)) for _ in range(rng.randrange(1, 4)))]


def send_all(address: str, messages: Iterator[list[bytes]]) -> None:
    """Sends from a socket of its own and returns when the server has worked through everything."""
    with zmq.Context.instance().socket(zmq.DEALER) as attacker:
        attacker.linger = 0
        attacker.connect(address)
        for message in messages:
            attacker.send_multipart(message)
            while attacker.poll(0):
                attacker.recv_multipart()
        # The server reads one connection in order: the answer to this comes last.
        attacker.send_multipart([bytes(encode(REQUEST, 2**40, "no such method", {})[0])])
        while b"UnknownMethod" not in attacker.recv():
            assert attacker.poll(20_000)


def test_malformed_messages_change_nothing_but_a_counter(counted: Counted, address: str) -> None:
    with Client(address, name="good", timeout_s=20) as client:
        before = client.call("act", OBSERVATION).result()
        send_all(address, malformed_messages(FRAMES, seed=FRAMES))
        after = client.call("act", OBSERVATION).result()
    for reply in (before, after):
        np.testing.assert_array_equal(reply["image"], OBSERVATION["image"])
    assert counted.server.stats()["malformed"] == FRAMES
    assert counted.calls == 2
    assert counted.server.failure is None


def test_a_good_client_is_served_while_garbage_arrives(counted: Counted, address: str) -> None:
    with Client(address, name="good", timeout_s=20) as client:
        for round_number in range(20):
            future = client.call("act", OBSERVATION)
            send_all(address, malformed_messages(50, seed=round_number))
            np.testing.assert_array_equal(future.result()["reward"], OBSERVATION["reward"])
    assert counted.calls == 20


def test_bytes_that_are_not_even_zeromq_do_no_harm(counted: Counted, address: str, sockets: Path) -> None:
    rng = random.Random(0)
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(sockets / "server"))
            try:
                raw.sendall(rng.randbytes(rng.randrange(1, 5000)))
            except (BrokenPipeError, ConnectionResetError):
                pass  # thrown out early
    with Client(address, name="good", timeout_s=20) as client:
        client.call("act", OBSERVATION).result()
    assert counted.calls == 1
