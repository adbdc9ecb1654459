from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dreamfleet.core.errors import (
    AddressError,
    DeadlineExceeded,
    Disconnected,
    RemoteError,
    SpaceMismatch,
    TransportError,
    UnknownMethod,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.stop import Stop
from dreamfleet.transport.client import Client
from dreamfleet.transport.server import Server


def number(value: int) -> Arrays:
    return {"x": np.array(value)}


def fail(error: Exception) -> Callable[[Arrays], Arrays]:
    def handler(arrays: Arrays) -> Arrays:
        raise error

    return handler


def test_errors_of_handlers_reach_the_caller_with_their_type(address: str) -> None:
    server = Server(address, name="server")
    server.bind("expected", fail(SpaceMismatch("image is float")))
    server.bind("unexpected", fail(KeyError("lost")))
    server.bind("unsendable", lambda arrays: {"x": np.array(["text"])})
    server.bind("good", lambda arrays: arrays)
    with server, Client(address, name="client") as client:
        with pytest.raises(SpaceMismatch, match="image is float"):
            client.call("expected").result()
        with pytest.raises(RemoteError, match="KeyError: 'lost'"):
            client.call("unexpected").result()
        with pytest.raises(TransportError, match="cannot be sent"):
            client.call("unsendable").result()
        with pytest.raises(UnknownMethod, match="no method 'other', only expected, good"):
            client.call("other").result()
        assert client.call("good", number(1)).result()["x"] == 1
        stats = server.stats()
    assert [stats[f"{name}/errors"] for name in ("expected", "unexpected", "unsendable", "good")] == [1, 1, 1, 0]


def test_a_handler_may_return_nothing(address: str) -> None:
    server = Server(address, name="server")
    server.bind("nothing", lambda arrays: None)
    with server, Client(address, name="client") as client:
        assert client.call("nothing").result() == {}


def test_methods_and_workers_run_side_by_side(address: str) -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(arrays: Arrays) -> None:
        together.wait()

    server = Server(address, name="server")
    server.bind("two", meet, workers=2)
    server.bind("one", meet)
    with server, Client(address, name="client") as client:
        for future in [client.call("two"), client.call("two"), client.call("one")]:
            assert future.result() == {}


def test_a_method_whose_queue_is_full_refuses(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamfleet.transport.server._MAX_QUEUED", 2)
    authenticator, entered = threading.Event(), threading.Event()

    def hold(arrays: Arrays) -> Arrays:
        entered.set()
        assert authenticator.wait(20)
        return arrays

    server = Server(address, name="server")
    server.bind("hold", hold)
    with server, Client(address, name="client") as client:
        running = client.call("hold", number(0))
        assert entered.wait(10)
        futures = [client.call("hold", number(i)) for i in (1, 2, 3)]
        with pytest.raises(TransportError, match="server is busy: 2 calls of 'hold' wait already"):
            futures[2].result()
        assert server.stats()["hold/queue"] == 2
        authenticator.set()
        assert [int(future.result()["x"]) for future in [running, *futures[:2]]] == [0, 1, 2]


def test_an_address_in_use_is_refused_and_its_owner_undisturbed(address: str) -> None:
    first = Server(address, name="first")
    first.bind("echo", lambda arrays: arrays)
    second = Server(address, name="second")
    second.bind("echo", lambda arrays: arrays)
    with first, Client(address, name="client") as client:
        with pytest.raises(AddressError, match="is in use"):
            second.start()
        assert client.call("echo", number(1)).result()["x"] == 1


def test_a_socket_file_left_by_a_killed_server_is_replaced(address: str, sockets: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(sockets / "server"))
    server = Server(address, name="server")
    server.bind("echo", lambda arrays: arrays)
    with server, Client(address, name="client") as client:
        assert client.call("echo", number(1)).result()["x"] == 1


@pytest.mark.parametrize("place", ["missing/server", "folder", "file"])
def test_a_place_that_cannot_hold_a_socket_is_refused_and_kept(sockets: Path, place: str) -> None:
    (sockets / "folder").mkdir()
    (sockets / "file").write_text("precious")
    with pytest.raises(AddressError, match=f"{sockets}/{place}"):
        Server(f"ipc://{sockets}/{place}", name="server").start()
    assert (sockets / "file").read_text() == "precious"


def test_a_failed_start_gives_back_the_addresses_it_had(sockets: Path) -> None:
    taken = Server(f"ipc://{sockets}/taken", name="taken")
    with taken:
        with pytest.raises(AddressError):
            Server(f"ipc://{sockets}/free,ipc://{sockets}/taken", name="server").start()
        with Server(f"ipc://{sockets}/free", name="server"):
            pass


def test_close_lets_handlers_finish_and_leaves_nothing(address: str, sockets: Path) -> None:
    authenticator, entered = threading.Event(), threading.Event()

    def hold(arrays: Arrays) -> Arrays:
        entered.set()
        assert authenticator.wait(20)
        return arrays

    server = Server(address, name="server")
    server.bind("hold", hold)
    server.start()
    with Client(address, name="client") as client:
        running = client.call("hold", number(1))
        assert entered.wait(10)
        closer = threading.Thread(target=server.close)
        closer.start()
        authenticator.set()
        assert running.result()["x"] == 1
        closer.join()
    server.close()
    assert list(sockets.iterdir()) == []


def test_close_names_the_thread_of_a_handler_that_does_not_end(address: str) -> None:
    authenticator, entered = threading.Event(), threading.Event()

    def hold(arrays: Arrays) -> None:
        entered.set()
        assert authenticator.wait(20)

    server = Server(address, name="server")
    server.bind("hold", hold)
    server.start()
    with Client(address, name="client") as client:
        future = client.call("hold")
        assert entered.wait(10)
        with pytest.raises(DeadlineExceeded, match=r"server-hold-0 did not end within 0\.05 s"):
            server.close(timeout_s=0.05)
        authenticator.set()
        server.close()
        assert future.result() == {}


def test_the_stop_switch_ends_the_server(address: str, sockets: Path) -> None:
    stop = Stop()
    server = Server(address, name="server", stop=stop)
    server.bind("echo", lambda arrays: arrays)
    server.start()
    with Client(address, name="client") as client:
        client.call("echo").result()
        stop.set()
        for thread in server._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in server._threads)
        with pytest.raises((Disconnected, DeadlineExceeded)):
            client.call("echo").result(timeout_s=0.2)
    server.close()
    stop.close()
    assert list(sockets.iterdir()) == []


def test_a_method_can_be_bound_once_and_only_before_the_start(address: str) -> None:
    server = Server(address, name="server")
    server.bind("echo", lambda arrays: arrays)
    with pytest.raises(TransportError, match="bound twice"):
        server.bind("echo", lambda arrays: arrays)
    with server:
        with pytest.raises(TransportError, match="after the start"):
            server.bind("late", lambda arrays: arrays)
        with pytest.raises(TransportError, match="started before"):
            server.start()


def test_starting_and_closing_again_and_again_leaves_nothing(address: str, sockets: Path) -> None:
    for value in range(20):
        server = Server(address, name="server")
        server.bind("echo", lambda arrays: arrays)
        with server, Client(address, name="client") as client:
            assert client.call("echo", number(value)).result()["x"] == value
        assert list(sockets.iterdir()) == []


def count_notices(client: Client) -> list[int]:
    """Grows by one with every notice that a call of this client is pending."""
    notices: list[int] = []
    client.on_pending = lambda: notices.append(1)
    return notices


def test_a_handler_that_waits_can_notify_all_that_wait_for_its_method(
    address: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    server = Server(address, name="server")
    notify, waiting, release = threading.Event(), threading.Semaphore(0), threading.Event()

    def wait(arrays: Arrays) -> None:
        waiting.release()
        assert notify.wait(10)
        server.notify_pending("wait")
        assert release.wait(10)

    server.bind("wait", wait)
    server.bind("hold", lambda arrays: release.wait(10) and None)
    server.bind("echo", lambda arrays: arrays)
    clients = [Client(address, name=name) for name in ("first", "queued", "elsewhere")]
    notices = [count_notices(client) for client in clients]
    with server:
        calls = [clients[0].call("wait"), clients[0].call("wait"), clients[1].call("wait"), clients[2].call("hold")]
        for client in clients:
            client.call("echo").result()
        assert waiting.acquire(timeout=10)
        eventually(lambda: server.stats()["wait/queue"] == 2)
        notify.set()

        def told() -> bool:
            for client in clients:
                client.poll()
            return (len(notices[0]), len(notices[1])) >= (2, 1)

        eventually(told)
        clients[2].call("echo").result()
        assert [len(found) for found in notices] == [2, 1, 0]
        release.set()
        for call in calls:
            assert call.result() == {}
    for client in clients:
        client.close()
