"""One suite over every kind of address: the same calls behave the same over ipc, tcp with keys (IPv4 and IPv6), and
in-process.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dreamfleet.core.errors import DeadlineExceeded, ReplayError, UnknownMethod
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.address import resolve_auto
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import PreparedRequest
from dreamfleet.transport.security import ClientSecurity, ServerSecurity, create_keys, load_client, load_server
from dreamfleet.transport.server import Server
from support.addresses import expect_ipv6

KINDS = {
    "ipc": "ipc://{auto}",
    "tcp": "tcp://127.0.0.1:{auto}",
    "tcp6": "tcp://[::1]:{auto}",
    "inproc": "inproc://{auto}",
}


@dataclass
class Endpoint:
    address: str
    server_security: ServerSecurity
    client_security: ClientSecurity

    def server(self) -> Server:
        return Server(self.address, name="server", security=self.server_security)

    def batch_server(self) -> BatchServer:
        return BatchServer(self.address, name="server", security=self.server_security)

    def client(self, max_inflight: int = 8) -> Client:
        return Client(
            self.address, name="client", security=self.client_security, max_inflight=max_inflight, timeout_s=20
        )


@pytest.fixture(params=KINDS)
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Endpoint]:
    if request.param == "tcp6":
        expect_ipv6()
    folder = tempfile.mkdtemp(prefix="df-")  # pytest's own path is too long for a Unix socket
    create_keys(tmp_path / "keys")
    address = resolve_auto(KINDS[request.param], folder, "server")
    yield Endpoint(address, load_server(tmp_path / "keys", "replay"), load_client(tmp_path / "keys", "replay"))
    assert list(Path(folder).iterdir()) == []
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # PyZMQ starts one thread per process to release memory it has sent without copying, and keeps it.
    left = [t for t in set(threading.enumerate()) - before if type(t).__name__ != "GarbageCollectorThread"]
    assert not left


def everything() -> Arrays:
    """One array of every sort: scalars, empty, large, strided, bfloat16."""
    return {
        "scalar": np.array(2.5),
        "flag": np.array(True),
        "empty": np.zeros((0, 3), np.int32),
        "image": np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3),
        "large": np.arange(200_000, dtype=np.float32).reshape(2, -1),
        "strided": np.arange(20).reshape(4, 5).T,
        "latent": np.arange(7).astype(ml_dtypes.bfloat16),
    }


def test_every_sort_of_array_comes_back(endpoint: Endpoint) -> None:
    server = endpoint.server()
    server.bind("echo", lambda arrays: arrays)
    with server, endpoint.client() as client:
        client.wait_connected()
        for _ in range(3):
            reply = client.call("echo", everything()).result()
            assert list(reply) == list(everything())
            for key, sent in everything().items():
                assert reply[key].dtype == sent.dtype
                np.testing.assert_array_equal(reply[key], sent)


def test_many_calls_in_flight_get_their_own_answers(endpoint: Endpoint) -> None:
    server = endpoint.server()
    server.bind("double", lambda arrays: {"y": arrays["x"] * 2}, workers=3)
    with server, endpoint.client(max_inflight=16) as client:
        futures = [client.call("double", {"x": np.array(i)}) for i in range(200)]
        assert [int(future.result()["y"]) for future in futures] == [2 * i for i in range(200)]


def test_several_clients_share_batches_and_get_their_own_rows(endpoint: Endpoint) -> None:
    server = endpoint.batch_server()
    server.bind_batch("act", lambda batch, rows: {"action": batch["slot"] + 1, "image": batch["image"]}, max_rows=8)
    failures: list[BaseException] = []

    def environment(index: int) -> None:
        try:
            rows = index % 3 + 1
            with endpoint.client() as client:
                request = PreparedRequest("act", {"slot": (np.int32, (rows,)), "image": (np.uint8, (rows, 8, 8, 3))})
                for step in range(50):
                    request.arrays["slot"][:] = index * 1000 + step
                    request.arrays["image"][:] = index
                    reply = client.send(request).result()
                    assert reply["action"].tolist() == [index * 1000 + step + 1] * rows
                    assert (reply["image"] == index).all()
        except BaseException as error:
            failures.append(error)

    with server:
        threads = [threading.Thread(target=environment, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert server.stats()["rows"] == 50 * (1 + 2 + 3 + 1)


def test_errors_keep_their_type(endpoint: Endpoint) -> None:
    def broken(arrays: Arrays) -> Arrays:
        raise ReplayError("nothing to sample")

    server = endpoint.server()
    server.bind("broken", broken)
    with server, endpoint.client() as client:
        with pytest.raises(ReplayError, match="nothing to sample"):
            client.call("broken").result()
        with pytest.raises(UnknownMethod):
            client.call("other").result()


def test_a_deadline_ends_a_wait(endpoint: Endpoint) -> None:
    gate = threading.Event()
    server = endpoint.server()
    server.bind("hold", lambda arrays: gate.wait(20) and None)
    with server, endpoint.client() as client:
        with pytest.raises(DeadlineExceeded, match=re.escape(endpoint.address)):
            client.call("hold").result(timeout_s=0.05)
        gate.set()


def test_the_same_address_serves_again_after_a_close(endpoint: Endpoint) -> None:
    for value in range(3):
        server = endpoint.server()
        server.bind("echo", lambda arrays: arrays)
        with server, endpoint.client() as client:
            assert client.call("echo", {"x": np.array(value)}).result()["x"] == value


def test_a_request_made_before_the_server_is_up_is_answered(endpoint: Endpoint) -> None:
    with endpoint.client() as client:
        future = client.call("echo", {"x": np.array(4)})
        server = endpoint.server()
        server.bind("echo", lambda arrays: arrays)
        with server:
            assert future.result()["x"] == 4


@pytest.mark.parametrize("reached", ["tcp://[::1]", "tcp://127.0.0.1"])
def test_every_ipv6_address_of_a_machine_takes_ipv4_clients_too(reached: str, tmp_path: Path) -> None:
    expect_ipv6()
    create_keys(tmp_path)
    everywhere = resolve_auto("tcp://[::]:{auto}", tmp_path, "server")
    server = Server(everywhere, name="server", security=load_server(tmp_path, "actor"))
    server.bind("echo", lambda arrays: arrays)
    address = f"{reached}:{everywhere.rpartition(':')[2]}"
    with server, Client(address, name="client", security=load_client(tmp_path, "actor"), timeout_s=20) as client:
        assert client.call("echo", {"x": np.array(5)}).result()["x"] == 5


def test_one_server_has_addresses_of_both_kinds(tmp_path: Path) -> None:
    expect_ipv6()
    create_keys(tmp_path)
    both = resolve_auto("tcp://127.0.0.1:{auto},tcp://[::1]:{auto},tcp://*:{auto}", tmp_path, "server")
    server = Server(both, name="server", security=load_server(tmp_path, "actor"))
    server.bind("echo", lambda arrays: arrays)
    with server:
        for address in both.replace("*", "127.0.0.1").split(","):
            with Client(address, name="client", security=load_client(tmp_path, "actor"), timeout_s=20) as client:
                assert client.call("echo", {"x": np.array(6)}).result()["x"] == 6


@pytest.mark.parametrize("host", ["*", "0.0.0.0"])
def test_a_server_on_every_interface_gives_its_port_back(tmp_path: Path, host: str) -> None:
    create_keys(tmp_path)
    address = resolve_auto(f"tcp://{host}:{{auto}}", tmp_path, "server")
    for _ in range(3):
        with Server(address, name="server", security=load_server(tmp_path, "actor")) as server:
            assert server.addresses == [address]
