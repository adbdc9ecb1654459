"""Servers in processes of their own that are stopped or killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dreamfleet.core.errors import Disconnected
from dreamfleet.transport.client import Client

SERVER = """
import sys, threading
from dreamfleet.transport.server import Server
server = Server(sys.argv[1], name="server")
server.bind("echo", lambda arrays: arrays)
server.bind("hold", lambda arrays: threading.Event().wait(60) and None)
server.start()
print("ready", flush=True)
threading.Event().wait(120)
"""


@contextmanager
def server_process(address: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, address], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_stopped_server_is_noticed_within_seconds(address: str) -> None:
    with server_process(address) as process, Client(address, name="client") as client:
        client.call("echo").result()
        future = client.call("hold")
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(Disconnected, match="connection was lost"):
            future.result()
        assert time.monotonic() - start < 8
        # Once it goes on, the client is connected again without being told.
        process.send_signal(signal.SIGCONT)
        assert client.call("echo", {"x": np.array(1)}).result()["x"] == 1
        assert client.stats()["reconnects"] >= 1


def test_a_call_that_waited_while_the_server_died_is_not_sent_as_if_nothing_was_lost(address: str) -> None:
    with Client(address, name="client", max_inflight=1) as client:
        with server_process(address) as process:
            client.call("echo").result()
            client.call("hold")  # nobody asks for its result
            process.kill()
            with pytest.raises(Disconnected, match="connection was lost"):
                client.call("echo")
        with server_process(address):
            assert client.call("echo", {"x": np.array(3)}).result()["x"] == 3


def test_a_loss_is_told_with_nothing_in_flight_to_those_who_want_to_know(address: str) -> None:
    with Client(address, name="client", tells_losses=True) as client, Client(address, name="other") as other:
        with server_process(address):
            client.call("echo").result()
            other.call("echo").result()
        with server_process(address):
            other.call("echo").result()  # by now the loss can be seen
            with pytest.raises(Disconnected, match="with no call in flight"):
                client.call("echo")
            assert client.call("echo", {"x": np.array(4)}).result()["x"] == 4
            client.check()


def test_a_killed_server_is_noticed_at_once_and_its_successor_is_found(address: str) -> None:
    with Client(address, name="client") as client:
        with server_process(address) as process:
            futures = [client.call("hold"), client.call("hold")]
            client.call("echo").result()
            process.kill()
            start = time.monotonic()
            for future in futures:
                with pytest.raises(Disconnected, match=f"client: the connection was lost to {address}"):
                    future.result()
            assert time.monotonic() - start < 3
        future = client.call("echo", {"x": np.array(2)})
        with server_process(address):
            assert future.result()["x"] == 2
