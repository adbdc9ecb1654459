from __future__ import annotations

import errno
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from dreamfleet.core.errors import (
    AddressError,
    DeadlineExceeded,
    Disconnected,
    ProtocolError,
    ReplayError,
    Stopped,
    TransportError,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.core.stop import Stop
from dreamfleet.transport.client import Client
from dreamfleet.transport.codec import REPLY, PreparedRequest, encode, encode_pending
from dreamfleet.transport.security import load_client
from dreamfleet.transport.server import Server
from dreamfleet.transport.sockets import make_socket


class Held:
    """A server with a method that answers only once the test opens its gate."""

    def __init__(self, address: str) -> None:
        self.authenticator = threading.Event()
        self.entered = threading.Semaphore(0)
        self.server = Server(address, name="held")
        self.server.bind("echo", lambda arrays: arrays)
        self.server.bind("hold", self.hold, workers=4)
        self.server.bind("fail", self.fail)
        self.server.start()

    def hold(self, arrays: Arrays) -> Arrays:
        self.entered.release()
        assert self.authenticator.wait(20)
        return arrays

    def fail(self, arrays: Arrays) -> Arrays:
        raise ReplayError(f"no {int(arrays['x'])}")

    def close(self) -> None:
        self.authenticator.set()
        self.server.close()


@pytest.fixture
def held(address: str) -> Iterator[Held]:
    held = Held(address)
    yield held
    held.close()


def number(value: int) -> Arrays:
    return {"x": np.array(value)}


def test_answers_may_be_collected_in_any_order(held: Held, address: str) -> None:
    with Client(address, name="client", max_inflight=20) as client:
        futures = [client.call("echo", number(i)) for i in range(20)]
        assert [int(future.result()["x"]) for future in reversed(futures)] == list(reversed(range(20)))


def test_a_result_can_be_read_again(held: Held, address: str) -> None:
    with Client(address, name="client") as client:
        future = client.call("echo", number(1))
        assert future.result() is future.result()


def test_done_never_waits_and_turns_true_when_the_answer_arrives(
    held: Held, address: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with Client(address, name="client") as client:
        future = client.call("hold", number(1))
        assert held.entered.acquire(timeout=10)
        assert not future.done()
        held.authenticator.set()
        eventually(future.done)
        assert future.result()["x"] == 1


def test_a_deadline_names_client_method_address_and_seconds(held: Held, address: str) -> None:
    with Client(address, name="env-3") as client:
        future = client.call("hold", number(1))
        with pytest.raises(DeadlineExceeded, match=rf"env-3 .*'hold' from {address} within 0\.05 s"):
            future.result(timeout_s=0.05)
        with pytest.raises(TransportError, match="raised before"):
            future.result()


def test_an_answer_after_its_deadline_is_dropped(held: Held, address: str) -> None:
    with Client(address, name="client", max_inflight=1) as client:
        with pytest.raises(DeadlineExceeded):
            client.call("hold", number(1)).result(timeout_s=0.05)
        held.authenticator.set()
        assert client.call("echo", number(2)).result()["x"] == 2
        assert client.call("hold", number(3)).result()["x"] == 3


def test_a_server_that_is_not_there_is_named_in_the_deadline(address: str) -> None:
    with Client(address, name="client", timeout_s=0.05) as client:
        with pytest.raises(DeadlineExceeded, match="is the server running"):
            client.call("echo").result()
        with pytest.raises(DeadlineExceeded, match=address):
            client.wait_connected()


def test_a_request_made_before_the_server_is_up_is_answered(address: str) -> None:
    with Client(address, name="client", timeout_s=20) as client:
        future = client.call("echo", number(5))
        with_server = Held(address)
        assert future.result()["x"] == 5
        client.wait_connected()
        with_server.close()


def test_no_more_than_the_allowed_requests_are_open(held: Held, address: str) -> None:
    with Client(address, name="client", max_inflight=3, timeout_s=0.1) as client:
        futures = [client.call("hold", number(i)) for i in range(3)]
        with pytest.raises(DeadlineExceeded, match="room among 3 open calls for 'hold'"):
            client.call("hold", number(3))
        assert client.stats()["inflight"] == 3
        held.authenticator.set()
        client.timeout_s = 20
        assert int(client.call("hold", number(3)).result(5)["x"]) == 3
        assert [int(future.result(5)["x"]) for future in futures] == [0, 1, 2]


def test_a_call_that_waits_for_room_goes_out_when_there_is_some(held: Held, address: str) -> None:
    with Client(address, name="client", max_inflight=1) as client:
        first = client.call("hold", number(1))
        assert held.entered.acquire(timeout=10)
        opener = threading.Timer(0.05, held.authenticator.set)
        opener.start()
        assert client.call("echo", number(2)).result()["x"] == 2
        assert first.done()
        opener.join()


def test_the_error_of_a_dropped_future_is_raised_by_the_next_call_once(
    held: Held, address: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with Client(address, name="client") as client:
        client.call("fail", number(7))

        def failed() -> bool:
            client.poll()
            return client.stats()["errors"] == 1

        eventually(failed)
        with pytest.raises(ReplayError, match="no 7"):
            client.call("echo", number(1))
        assert client.call("echo", number(2)).result()["x"] == 2
        client.check()


def test_the_error_of_a_kept_future_is_raised_by_the_future_only(held: Held, address: str) -> None:
    with Client(address, name="client") as client:
        future = client.call("fail", number(7))
        client.call("echo").result()
        with pytest.raises(ReplayError):
            future.result()
        del future
        client.check()


def test_a_wait_ends_when_the_role_is_stopped(held: Held, address: str) -> None:
    stop = Stop()
    with Client(address, name="client", stop=stop) as client:
        future = client.call("hold", number(1))
        assert held.entered.acquire(timeout=10)
        stopper = threading.Timer(0.05, stop.set)
        stopper.start()
        start = time.monotonic()
        with pytest.raises(Stopped, match="client was asked to stop"):
            future.result()
        assert time.monotonic() - start < 5
        stopper.join()
    stop.close()


def test_what_arrived_before_the_stop_can_still_be_read(held: Held, address: str) -> None:
    stop = Stop()
    with Client(address, name="client", stop=stop) as client:
        first = client.call("echo", number(1))
        client.call("echo", number(2)).result()
        stop.set()
        assert first.result()["x"] == 1
    stop.close()


def test_two_threads_in_one_client_is_a_clear_error(
    held: Held, address: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with Client(address, name="shared") as client:
        future = client.call("hold", number(1))
        waiter = threading.Thread(target=future.result)
        waiter.start()
        eventually(client._in_use.locked)
        with pytest.raises(TransportError, match="shared is used by two threads at once"):
            client.call("echo")
        held.authenticator.set()
        waiter.join()


def test_a_client_may_be_handed_from_thread_to_thread(held: Held, address: str) -> None:
    with Client(address, name="client") as client:
        results: list[int] = []
        for value in range(3):
            thread = threading.Thread(
                target=lambda v=value: results.append(int(client.call("echo", number(v)).result()["x"]))
            )
            thread.start()
            thread.join()
        assert results == [0, 1, 2]


def test_the_client_reconnects_to_a_restarted_server(address: str) -> None:
    with Client(address, name="client") as client:
        for round_number in range(4):
            server = Held(address)
            try:
                result = client.call("echo", number(round_number)).result()
            except Disconnected:  # the loss of the previous server may be noticed only with this call
                result = client.call("echo", number(round_number)).result()
            assert result["x"] == round_number
            server.close()
        assert client.stats()["reconnects"] == 3


def test_a_call_made_after_the_loss_was_noticed_waits_for_the_new_server(
    address: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with Client(address, name="client") as client:
        server = Held(address)
        client.call("echo").result()
        server.close()

        def noticed() -> bool:
            client.poll()
            return client.stats()["reconnects"] == 1

        eventually(noticed)
        future = client.call("echo", number(3))
        server = Held(address)
        assert future.result()["x"] == 3
        server.close()


def test_requests_in_flight_fail_when_the_server_goes(
    address: str, sockets: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    server = Server(address, name="server")
    entered, authenticator = threading.Semaphore(0), threading.Event()

    def hold(arrays: Arrays) -> None:
        entered.release()
        assert authenticator.wait(20)

    server.bind("hold", hold)
    server.start()
    with Client(address, name="client") as client:
        futures = [client.call("hold") for _ in range(3)]
        assert entered.acquire(timeout=10)
        eventually(lambda: server.stats()["hold/queue"] == 2)
        closer = threading.Thread(target=server.close, args=(10.0,))
        closer.start()
        for future in futures[1:]:
            with pytest.raises(Disconnected, match="closed before"):
                future.result()
        authenticator.set()
        closer.join()
    assert list(sockets.iterdir()) == []


def test_a_prepared_request_may_be_refilled_as_soon_as_it_was_sent(held: Held, address: str) -> None:
    with Client(address, name="client", max_inflight=50) as client:
        request = PreparedRequest("echo", {"x": (np.int64, (3,)), "wide": (np.uint8, (300_000,))})
        futures = []
        for value in range(20):
            request.arrays["x"][:] = value
            request.arrays["wide"][:] = value
            futures.append(client.send(request))
        for value, future in enumerate(futures):
            reply = future.result()
            assert (reply["x"] == value).all()
            assert (reply["wide"] == value).all()


def test_a_request_that_cannot_be_encoded_takes_no_place(held: Held, address: str) -> None:
    with Client(address, name="client", max_inflight=1, timeout_s=5) as client:
        for _ in range(3):
            with pytest.raises(ProtocolError, match="cannot be sent"):
                client.call("echo", {"x": np.array(["text"])})
        assert client.call("echo", number(1)).result()["x"] == 1


def test_statistics_count_what_went_over_the_wire(held: Held, address: str) -> None:
    with Client(address, name="client") as client:
        for value in range(4):
            client.call("echo", number(value)).result()
        with pytest.raises(ReplayError):
            client.call("fail", number(0)).result()
        stats = client.stats()
    assert (stats["sent"], stats["received"], stats["errors"], stats["inflight"]) == (5, 4, 1, 0)
    assert stats["bytes_out"] > 5 * 24
    assert stats["bytes_in"] > 4 * 24
    assert stats["wait_s"] > 0


def test_close_may_be_repeated_and_later_calls_are_refused(held: Held, address: str) -> None:
    client = Client(address, name="client")
    future = client.call("hold")
    client.close()
    client.close()
    with pytest.raises(Disconnected, match="closed with calls in flight"):
        future.result()
    with pytest.raises(TransportError, match="client is closed"):
        client.call("echo")


def test_an_address_nobody_can_connect_to_is_refused(keys: Path) -> None:
    with pytest.raises(AddressError, match=r"cannot connect to tcp://\*:5555"):
        Client("tcp://*:5555", name="client", security=load_client(keys, "replay"))


def test_a_stop_is_seen_although_answers_are_always_waiting(address: str) -> None:
    stop = Stop()
    server = Server(address, name="server")
    server.bind("echo", lambda arrays: arrays)
    with server, Client(address, name="client", stop=stop) as client:
        future = client.call("echo", {"x": np.zeros(1)})
        future.result(5)
        stop.set()
        with pytest.raises(Stopped):
            client.call("echo", {"x": np.zeros(1)})
    stop.close()


class Script:
    """Stands for the link of a client and for its clock: what arrives when. A wait takes no time of the test."""

    def __init__(self, *arrivals: tuple[float, list[Any]]) -> None:
        self.now = 100.0
        self.connected = True
        self._arrivals = deque((100.0 + after_s, frames) for after_s, frames in arrivals)

    def monotonic(self) -> float:
        return self.now

    def poll(self, timeout_s: float) -> tuple[bool, bool]:
        due = self._arrivals[0][0] if self._arrivals else math.inf
        self.now = min(max(due, self.now), self.now + timeout_s)
        return due <= self.now, False

    def receive(self) -> bytes | None:
        if not self._arrivals or self._arrivals[0][0] > self.now:
            return None
        return bytes(self._arrivals.popleft()[1][0])

    def send(self, frames: Any, copy: bool) -> bool:
        return True

    def receive_large(self) -> list[Any]:
        return []

    def trouble(self) -> str:
        return ""

    def close(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Client, Script]]:
    """A client with deadlines of 10 s whose calls get the ids 1, 2, and so on."""

    def make(*arrivals: tuple[float, list[Any]], **options: Any) -> tuple[Client, Script]:
        script = Script(*arrivals)
        monkeypatch.setattr("dreamfleet.transport.client.Link", lambda *args: script)
        monkeypatch.setattr("dreamfleet.transport.client.time", script)
        return Client("inproc://nobody", name="client", timeout_s=10.0, **options), script

    return make


def answer(request_id: int) -> list[Any]:
    return encode(REPLY, request_id, "", number(request_id))


def test_a_deadline_counts_from_the_last_notice_that_the_call_is_pending(scripted) -> None:
    client, script = scripted(*[(9.0 * n, encode_pending(1)) for n in range(1, 51)])
    with pytest.raises(DeadlineExceeded, match="within 10 s"):
        client.call("insert").result()
    assert script.now == 100.0 + 50 * 9.0 + 10.0


def test_a_call_is_answered_however_long_it_was_pending(scripted) -> None:
    client, script = scripted(*[(9.0 * n, encode_pending(1)) for n in range(1, 51)], (455.0, answer(1)))
    assert client.call("insert").result()["x"] == 1
    assert script.now == 555.0


@pytest.mark.parametrize("message", [encode_pending, answer], ids=["notice", "answer"])
def test_a_call_waits_as_long_as_those_of_its_method_before_it_move_on(scripted, message: Any) -> None:
    client, _ = scripted((9.0, message(1)), (18.0, message(2)), (27.0, answer(3)))
    futures = [client.call("insert") for _ in range(3)]
    assert futures[2].result()["x"] == 3


@pytest.mark.parametrize("message", [encode_pending, answer], ids=["notice", "answer"])
def test_a_call_does_not_wait_for_longer_because_another_method_moves_on(scripted, message: Any) -> None:
    client, script = scripted((9.0, message(1)))
    client.call("sample")
    with pytest.raises(DeadlineExceeded, match="answer to 'report'"):
        client.call("report").result()
    assert script.now == 110.0


def test_a_wait_for_room_lasts_as_long_as_an_open_call_is_pending(scripted) -> None:
    client, _ = scripted(*[(9.0 * n, encode_pending(1)) for n in range(1, 51)], (455.0, answer(1)), max_inflight=2)
    futures = [client.call("insert") for _ in range(2)]
    client.call("insert")
    assert futures[0].done()
    client, script = scripted((9.0, encode_pending(1)), max_inflight=1)
    futures = [client.call("insert")]
    with pytest.raises(DeadlineExceeded, match="room among 1 open calls"):
        client.call("insert")
    assert script.now == 119.0


def test_a_notice_about_a_call_that_is_over_changes_nothing(scripted) -> None:
    client, script = scripted((1.0, answer(1)), (9.0, encode_pending(1)))
    assert client.call("insert").result()["x"] == 1
    with pytest.raises(DeadlineExceeded):
        client.call("insert").result()
    assert script.now == 111.0


def test_every_notice_is_passed_on(scripted) -> None:
    client, script = scripted((4.0, encode_pending(1)), (8.0, encode_pending(1)), (9.0, answer(1)))
    passed: list[float] = []
    client.on_pending = lambda: passed.append(script.now)
    client.call("insert").result()
    assert passed == [104.0, 108.0]


def test_a_client_that_lost_its_connection_waits_for_a_free_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([errno.EMFILE, errno.EMFILE])

    def make(context: Any, kind: int) -> Any:
        for number in failures:
            raise zmq.ZMQError(number)
        return make_socket(context, kind)

    address = f"ipc://{tmp_path}/server"
    with Client(address, name="client", timeout_s=20) as client:
        first = Server(address, name="server")
        first.bind("echo", lambda arrays: arrays)
        with first:
            client.call("echo", {"x": np.array(1)}).result()
            monkeypatch.setattr("dreamfleet.transport.link.make_socket", make)
            monkeypatch.setattr("dreamfleet.transport.link.RETRY_S", 0.01)
        second = Server(address, name="server")
        second.bind("echo", lambda arrays: arrays)
        with second, pytest.raises(Disconnected):
            while True:
                client.call("echo", {"x": np.array(2)}).result()
        assert next(failures, None) is None
