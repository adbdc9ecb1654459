"""Who gets in over tcp: only clients whose key the server knows, and only to the server they mean."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq

from dreamfleet.core.errors import DeadlineExceeded, SecurityError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.address import resolve_auto as resolve
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import REQUEST, encode
from dreamfleet.transport.link import Link
from dreamfleet.transport.security import ClientSecurity, ServerSecurity, create_keys, load_client, load_server
from dreamfleet.transport.server import Server


def admitting(keys: Path) -> ServerSecurity:
    """A server whose methods the run's own key may call."""
    return load_server(keys, "replay")


def owner(keys: Path) -> ClientSecurity:
    return load_client(keys, "replay")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def strangers(tmp_path: Path) -> ClientSecurity:
    """Keys of another run."""
    create_keys(tmp_path / "other")
    return owner(tmp_path / "other")


@pytest.fixture(params=[Server, BatchServer])
def address(request: pytest.FixtureRequest, keys: Path, tmp_path: Path) -> Iterator[str]:
    address = resolve("tcp://127.0.0.1:{auto}", tmp_path, "server")
    server = request.param(address, name="server", security=admitting(keys))
    if isinstance(server, BatchServer):
        server.bind_batch("echo", lambda batch, rows: batch, max_rows=4)
    else:
        server.bind("echo", lambda arrays: arrays)
    before = set(threading.enumerate())
    with server:
        yield address
        assert works(address, owner(keys))
    assert set(threading.enumerate()) <= before


def works(address: str, security: ClientSecurity, timeout_s: float = 20) -> bool:
    with Client(address, name="client", security=security, timeout_s=timeout_s) as client:
        return client.call("echo", {"x": np.array([3])}).result()["x"].tolist() == [3]


def test_the_right_key_works(address: str, keys: Path) -> None:
    assert works(address, owner(keys))


def test_a_client_with_a_key_the_server_does_not_know_gets_nowhere(
    address: str, keys: Path, strangers: ClientSecurity
) -> None:
    security = replace(strangers, server_public=owner(keys).server_public)
    with pytest.raises(DeadlineExceeded, match="refuses this client's keys"):
        works(address, security, timeout_s=1)


def test_a_client_that_is_refused_before_it_calls_gets_nowhere(
    address: str, keys: Path, strangers: ClientSecurity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ takes no messages for a server that has refused the keys, however early that was."""
    security = replace(strangers, server_public=owner(keys).server_public)
    with monkeypatch.context() as patched:
        patched.setattr(Link, "send", lambda *_: False)
        with pytest.raises(DeadlineExceeded, match=r"'echo' from .* refuses this client's keys"):
            works(address, security, timeout_s=1)


def test_a_client_that_expects_another_server_gets_nowhere(address: str, keys: Path, strangers: ClientSecurity) -> None:
    security = replace(owner(keys), server_public=strangers.server_public)
    with pytest.raises(DeadlineExceeded):
        works(address, security, timeout_s=1)


def test_a_client_whose_secret_does_not_fit_its_public_key_gets_nowhere(
    address: str, keys: Path, strangers: ClientSecurity
) -> None:
    with pytest.raises(DeadlineExceeded):
        works(address, replace(owner(keys), secret=strangers.secret), timeout_s=1)


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
    servers = {name: Server(addresses[name], name=name, security=admitting(tmp_path / name)) for name in ("a", "b")}
    for server in servers.values():
        server.bind("echo", lambda arrays: arrays)
    with servers["a"]:
        with servers["b"]:
            assert works(addresses["a"], owner(tmp_path / "a"))
            assert works(addresses["b"], owner(tmp_path / "b"))
            crossed = replace(owner(tmp_path / "b"), server_public=owner(tmp_path / "a").server_public)
            with pytest.raises(DeadlineExceeded):
                works(addresses["a"], crossed, timeout_s=0.5)
        assert works(addresses["a"], owner(tmp_path / "a"))


def test_a_server_can_follow_another_at_once(keys: Path, tmp_path: Path) -> None:
    for _ in range(50):
        address = resolve("tcp://127.0.0.1:{auto}", tmp_path, "one")
        server = Server(address, name="one", security=admitting(keys))
        server.bind("echo", lambda arrays: arrays)
        with server:
            assert works(address, owner(keys))


def test_local_addresses_of_a_secured_server_need_no_keys(keys: Path, tmp_path: Path) -> None:
    addresses = resolve("tcp://127.0.0.1:{auto},inproc://{auto}", tmp_path, "server").split(",")
    server = Server(addresses, name="server", security=admitting(keys))
    server.bind("echo", lambda arrays: arrays)
    with server, Client(addresses[1], name="local", timeout_s=20) as client:
        assert client.call("echo", {"x": np.array([3])}).result()["x"] == 3
        assert works(addresses[0], owner(keys))


def call(address: str, security: ClientSecurity | None, method: str, timeout_s: float = 20) -> Arrays:
    with Client(address, name="client", security=security, timeout_s=timeout_s) as client:
        return client.call(method, {"x": np.array([3])}).result()


@pytest.mark.parametrize("kind", [Server, BatchServer])
def test_a_method_that_the_key_may_not_call_is_refused_and_never_reached(
    kind: type[Server | BatchServer], keys: Path, tmp_path: Path
) -> None:
    addresses = resolve("tcp://127.0.0.1:{auto},inproc://{auto}", tmp_path, "server").split(",")
    server = kind(addresses, name="server", security=load_server(keys, "actor"))
    reached: list[str] = []
    for method in ("join", "save"):
        server.bind(method, lambda arrays, method=method: reached.append(method))  # type: ignore[misc]
    worker = load_client(keys, "actor", "worker")
    with server:
        for method in ("save", "nothing"):
            with pytest.raises(SecurityError, match=f"this key may not call '{method}' of server server, only act, "):
                call(addresses[0], worker, method)
        assert reached == []
        assert server.stats()["forbidden"] == 2
        assert server.stats()["malformed"] == 0
        call(addresses[0], worker, "join")
        call(addresses[0], load_client(keys, "actor"), "save")
        call(addresses[1], None, "save")  # a local connection is the run's own
    assert reached == ["join", "save", "save"]
    assert server.stats()["forbidden"] == 2


def test_requests_say_whether_their_key_is_limited_where_a_method_asks_for_it(keys: Path, tmp_path: Path) -> None:
    addresses = resolve("tcp://127.0.0.1:{auto},inproc://{auto}", tmp_path, "server").split(",")
    server = BatchServer(addresses, name="server", security=load_server(keys, "actor"))
    server.bind("join", lambda arrays: {}, identify=True)
    server.bind("add", lambda arrays: {})
    seen: list[tuple[str, bool]] = []
    server.check_request = lambda request: seen.append((request.layout.method, request.limited))
    worker, own = load_client(keys, "actor", "worker"), load_client(keys, "actor")
    with server:
        for address, security in ((addresses[0], worker), (addresses[0], own), (addresses[1], None)):
            call(address, security, "join")
        call(addresses[0], worker, "add")
    assert seen == [("join", True), ("join", False), ("join", False), ("add", False)]


def test_batch_methods_are_refused_too(keys: Path, tmp_path: Path) -> None:
    address = resolve("tcp://127.0.0.1:{auto}", tmp_path, "server")
    server = BatchServer(address, name="server", security=load_server(keys, "actor"))
    for method in ("act", "plan"):
        server.bind_batch(method, lambda batch, rows: batch, max_rows=4)
    worker = load_client(keys, "actor", "worker")
    with server:
        assert call(address, worker, "act")["x"].tolist() == [3]
        with pytest.raises(SecurityError, match="'plan'"):
            call(address, worker, "plan")
        assert server.stats()["rows"] == 1


@pytest.mark.parametrize("server", ["replay", "logger", "clock"])
def test_a_workers_key_gets_into_the_actor_only(keys: Path, tmp_path: Path, server: str) -> None:
    address = resolve("tcp://127.0.0.1:{auto}", tmp_path, server)
    one = Server(address, name=server, security=load_server(keys, server))
    one.bind("add", lambda arrays: arrays)
    with one:
        with pytest.raises(DeadlineExceeded, match="refuses this client's keys"):
            call(address, load_client(keys, server, "worker"), "add", timeout_s=1)
        assert call(address, load_client(keys, server), "add")["x"] == [3]


def test_replays_key_may_only_send_its_metrics_to_the_logger(keys: Path, tmp_path: Path) -> None:
    address = resolve("tcp://127.0.0.1:{auto}", tmp_path, "logger")
    logger = Server(address, name="logger", security=load_server(keys, "logger"))
    for method in ("add", "save"):
        logger.bind(method, lambda arrays: arrays)
    with logger:
        assert call(address, load_client(keys, "logger", "replay"), "add")["x"] == [3]
        with pytest.raises(SecurityError, match="this key may not call 'save' of server logger, only add"):
            call(address, load_client(keys, "logger", "replay"), "save")


@pytest.mark.parametrize("other", ["replay", "worker", "owner"])
def test_no_other_secret_can_pose_as_the_actor(keys: Path, tmp_path: Path, other: str) -> None:
    """Here by the file of another pair under the actor's name."""
    copied = tmp_path / "copied"
    shutil.copytree(keys, copied)
    shutil.copy(copied / f"{other}.json", copied / "actor.json")
    address = resolve("tcp://127.0.0.1:{auto}", tmp_path, "server")
    impostor = Server(address, name="server", security=load_server(copied, "actor"))
    impostor.bind("join", lambda arrays: arrays)
    worker = load_client(keys, "actor", "worker")
    with impostor:
        with pytest.raises(DeadlineExceeded):
            call(address, worker, "join", timeout_s=1)
        assert call(address, replace(worker, server_public=create_keys(keys)[other]), "join")["x"] == [3]
