"""Who gets in over tcp: only clients whose key the server knows, and only to the server they mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq

from dreamfleet.core.errors import DeadlineExceeded
from dreamfleet.transport import BatchServer, Client, ClientSecurity, Server, create_keys, load_client, load_server
from dreamfleet.transport import resolve_auto as resolve
from dreamfleet.transport.codec import REQUEST, encode
from dreamfleet.transport.link import Link


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def strangers(tmp_path: Path) -> ClientSecurity:
    """Keys of another run."""
    create_keys(tmp_path / "other")
    return load_client(tmp_path / "other")


@pytest.fixture(params=[Server, BatchServer])
def address(request: pytest.FixtureRequest, keys: Path, tmp_path: Path) -> Iterator[str]:
    address = resolve("tcp://127.0.0.1:{auto}", tmp_path, "server")
    server = request.param(address, name="server", security=load_server(keys))
    if isinstance(server, BatchServer):
        server.bind_batch("echo", lambda batch, rows: batch, max_rows=4)
    else:
        server.bind("echo", lambda arrays: arrays)
    before = set(threading.enumerate())
    with server:
        yield address
        assert works(address, load_client(keys))
    assert set(threading.enumerate()) <= before


def works(address: str, security: ClientSecurity, timeout_s: float = 20) -> bool:
    with Client(address, name="client", security=security, timeout_s=timeout_s) as client:
        return client.call("echo", {"x": np.array([3])}).result()["x"].tolist() == [3]


def test_the_right_key_works(address: str, keys: Path) -> None:
    assert works(address, load_client(keys))


def test_a_client_with_a_key_the_server_does_not_know_gets_nowhere(
    address: str, keys: Path, strangers: ClientSecurity
) -> None:
    security = replace(strangers, server_public=load_client(keys).server_public)
    with pytest.raises(DeadlineExceeded, match="refuses this client's keys"):
        works(address, security, timeout_s=1)


def test_a_client_that_is_refused_before_it_calls_gets_nowhere(
    address: str, keys: Path, strangers: ClientSecurity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ takes no messages for a server that has refused the keys, however early that was."""
    security = replace(strangers, server_public=load_client(keys).server_public)
    with monkeypatch.context() as patched:
        patched.setattr(Link, "send", lambda *_: False)
        with pytest.raises(DeadlineExceeded, match=r"'echo' from .* refuses this client's keys"):
            works(address, security, timeout_s=1)


def test_a_client_that_expects_another_server_gets_nowhere(address: str, keys: Path, strangers: ClientSecurity) -> None:
    security = replace(load_client(keys), server_public=strangers.server_public)
    with pytest.raises(DeadlineExceeded):
        works(address, security, timeout_s=1)


def test_a_client_whose_secret_does_not_fit_its_public_key_gets_nowhere(
    address: str, keys: Path, strangers: ClientSecurity
) -> None:
    with pytest.raises(DeadlineExceeded):
        works(address, replace(load_client(keys), secret=strangers.secret), timeout_s=1)


def test_a_client_without_keys_gets_nowhere(address: str) -> None:
    with zmq.Context.instance().socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(address)
        plain.send_multipart([bytes(encode(REQUEST, 1, "echo", {"x": np.array([3])})[0])])
        assert not plain.poll(1000)


def test_two_servers_of_one_process_admit_their_own_clients_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        create_keys(tmp_path / name)
    addresses = {name: resolve("tcp://127.0.0.1:{auto}", tmp_path, name) for name in ("a", "b")}
    servers = {name: Server(addresses[name], name=name, security=load_server(tmp_path / name)) for name in ("a", "b")}
    for server in servers.values():
        server.bind("echo", lambda arrays: arrays)
    with servers["a"]:
        with servers["b"]:
            assert works(addresses["a"], load_client(tmp_path / "a"))
            assert works(addresses["b"], load_client(tmp_path / "b"))
            crossed = replace(load_client(tmp_path / "b"), server_public=load_client(tmp_path / "a").server_public)
            with pytest.raises(DeadlineExceeded):
                works(addresses["a"], crossed, timeout_s=0.5)
        assert works(addresses["a"], load_client(tmp_path / "a"))


def test_a_server_can_follow_another_at_once(keys: Path, tmp_path: Path) -> None:
    for _ in range(50):
        with Server(resolve("tcp://127.0.0.1:{auto}", tmp_path, "one"), name="one", security=load_server(keys)):
            pass


def test_local_addresses_of_a_secured_server_need_no_keys(keys: Path, tmp_path: Path) -> None:
    addresses = resolve("tcp://127.0.0.1:{auto},inproc://{auto}", tmp_path, "server").split(",")
    server = Server(addresses, name="server", security=load_server(keys))
    server.bind("echo", lambda arrays: arrays)
    with server, Client(addresses[1], name="local", timeout_s=20) as client:
        assert client.call("echo", {"x": np.array([3])}).result()["x"] == 3
        assert works(addresses[0], load_client(keys))
