"""Hosts of a network: who reaches whom, and that nothing of them is left behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import namespaces
from namespaces import GOOD, LOST, Host, Network, Quality, why_unavailable
from support.fleet_probe import is_running, wait_until

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=f"no network namespaces: {why_unavailable()}")

ANSWER = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print("listens", flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(64))
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2])) as connection:
    connection.sendall(b"hello")
    sys.exit(connection.recv(64) != b"hello")
"""
OWNER = """
import subprocess, sys, time
from namespaces import Network

with Network() as network:
    inside = subprocess.Popen(network.add().command("sleep", "60"))
    print(inside.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@contextlib.contextmanager
def answering(host: Host, address: str) -> Iterator[None]:
    command = host.command(sys.executable, "-c", ANSWER, address)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "listens\n"
        yield
        server.kill()


def asks(host: Host, address: str, timeout_s: float = 10.0) -> bool:
    words = [sys.executable, "-c", ASK, address, str(timeout_s)]
    return subprocess.run(host.command(*words), stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["address", "address6"])
def test_hosts_reach_each_other(network: Network, kind: str) -> None:
    first, second, third = (network.add() for _ in range(3))
    with answering(first, getattr(first, kind)):
        assert asks(second, getattr(first, kind))
        assert asks(third, getattr(first, kind))


@pytest.mark.parametrize(
    ("sends", "receives"), [(LOST, GOOD), (GOOD, LOST), (LOST, LOST)], ids=["sends", "receives", "neither"]
)
def test_a_link_without_one_direction_answers_nobody_until_it_is_healed(
    network: Network, sends: Quality, receives: Quality
) -> None:
    first, second = network.add(), network.add()
    with answering(first, first.address):
        second.sends, second.receives = sends, receives
        assert not asks(second, first.address, timeout_s=0.5)
        second.heal()
        assert asks(second, first.address)


def test_a_slow_link_delays_every_packet(network: Network) -> None:
    first, second = network.add(), network.add()
    second.receives = Quality(delay_s=0.2)
    with answering(first, first.address):
        start = time.monotonic()
        assert asks(second, first.address)
    assert time.monotonic() - start > 0.4  # an answer to the first packet of a connection, and one to its data


def test_a_removed_host_comes_back_with_its_address(network: Network) -> None:
    first, second = network.add(), network.add()
    with answering(first, first.address):
        network.remove(first)
    again = network.add(first.number)
    assert again.address == first.address
    with answering(again, again.address):
        assert asks(second, again.address)


def test_whatever_runs_in_a_host_ends_with_it(network: Network) -> None:
    command = network.add().command("sh", "-c", "echo inside; exec sleep 60")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as inside:
        assert inside.stdout
        assert inside.stdout.readline() == b"inside\n"  # else it may enter the host after it was removed
        network.remove(network.hosts[1])
        assert inside.wait(10) == -9


def test_a_killed_owner_leaves_nothing_behind() -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=Path(namespaces.__file__).parent, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        inside = int(owner.stdout.readline())
        others = [process.pid for process in psutil.Process(owner.pid).children(recursive=True)]
        assert inside in others
        owner.kill()
    wait_until(lambda: not any(map(is_running, others)), 10.0, "the namespaces' end")
