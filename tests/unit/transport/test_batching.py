from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dreamfleet.core.errors import (
    DeadlineExceeded,
    Disconnected,
    ProtocolError,
    RemoteError,
    ReplayError,
    TransportError,
    UnknownMethod,
)
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.batching import BatchServer
from dreamfleet.transport.client import Client, Future
from dreamfleet.transport.codec import Message
from support.fleet_probe import wait_until


class Held:
    """A batch handler that records its batches. The first call waits until the test opens the gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.authenticator = threading.Event()
        self.batches: list[tuple[Arrays, int]] = []
        self.posts: list[tuple[Arrays, Any, int]] = []

    def handler(self, batch: Arrays, rows: int) -> Arrays:
        self.batches.append((batch, rows))
        if not self.entered.is_set():
            self.entered.set()
            assert self.authenticator.wait(20)
        return {"double": batch["x"] * 2}

    def post(self, batch: Arrays, result: Any, rows: int) -> None:
        self.posts.append((batch, result, rows))

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Bucket and valid rows of every batch."""
        return [(len(batch["x"]), rows) for batch, rows in self.batches]


@pytest.fixture
def address(tmp_path: Path) -> str:
    """In-process: a request is in the server's queue when `call` returns, so batches can be predicted exactly."""
    return f"inproc://{tmp_path}"


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.authenticator.set()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, name="client", max_inflight=200, timeout_s=20) as client:
        yield client


def rows_of(*values: int) -> Arrays:
    return {"x": np.array(values, np.int64)}


def queue_behind_the_first(held: Held, client: Client, requests: list[Arrays]) -> list[Future]:
    """Sends one request that keeps the handler busy and the others while it is; then lets the handler go on."""
    first = client.call("act", rows_of(-1))
    assert held.entered.wait(10)
    futures = [client.call("act", arrays) for arrays in requests]
    held.authenticator.set()
    assert first.result()["double"] == -2
    return futures


def test_requests_that_arrive_while_the_handler_is_busy_make_one_batch(
    address: str, client: Client, held: Held
) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", held.handler, max_rows=16)
    with server:
        futures = queue_behind_the_first(held, client, [rows_of(i, i + 100) for i in range(5)])
        for i, future in enumerate(futures):
            assert future.result()["double"].tolist() == [2 * i, 2 * i + 200]
    assert held.shapes == [(1, 1), (16, 10)]


def test_a_single_waiting_request_is_served_at_once(address: str, client: Client) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=16)
    with server:
        assert client.call("act", rows_of(1)).result()["x"].tolist() == [1]


@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 6), (6, 6)], ids=lambda value: str(value))
def test_a_batch_is_padded_to_the_next_bucket_with_its_last_row(
    address: str, client: Client, rows: int, bucket: int
) -> None:
    seen: list[Arrays] = []

    def handler(batch: Arrays, valid: int) -> Arrays:
        assert valid == rows
        seen.append(batch)
        return batch

    server = BatchServer(address, name="server")
    server.bind_batch("act", handler, max_rows=6)
    with server:
        reply = client.call("act", rows_of(*range(rows))).result()
    assert seen[0]["x"].tolist() == [*range(rows), *[rows - 1] * (bucket - rows)]
    assert reply["x"].tolist() == [*range(rows)]


def test_a_request_that_does_not_fit_stays_for_the_next_batch(address: str, client: Client, held: Held) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", held.handler, max_rows=4)
    with server:
        # A batch takes requests in order of arrival: 3 + 2 rows exceed 4, so 2 + 1 make the next one.
        futures = queue_behind_the_first(held, client, [rows_of(1, 2, 3), rows_of(4, 5), rows_of(6)])
        assert [future.result()["double"].tolist() for future in futures] == [[2, 4, 6], [8, 10], [12]]
    assert held.shapes == [(1, 1), (4, 3), (4, 3)]


def test_a_request_larger_than_a_batch_is_refused(address: str, client: Client) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=4)
    with server:
        with pytest.raises(ProtocolError, match="has 5 rows, at most 4 are allowed"):
            client.call("act", rows_of(1, 2, 3, 4, 5)).result()
        assert client.call("act", rows_of(1, 2, 3, 4)).result()["x"].tolist() == [1, 2, 3, 4]
        assert server.stats()["errors"] == 1


@pytest.mark.parametrize(
    "arrays",
    [
        {"y": np.zeros(1, np.int64)},
        {"x": np.zeros(1, np.int64), "y": np.zeros(1)},
        {"x": np.zeros(1, np.float64)},
        {"x": np.zeros((1, 2), np.int64)},
        {"x": np.zeros(0, np.int64)},
        {"x": np.array(3)},
        {},
    ],
    ids=["other key", "extra key", "other dtype", "other shape", "no rows", "no axis", "no arrays"],
)
def test_a_request_unlike_the_others_is_refused_and_disturbs_nobody(
    address: str, client: Client, arrays: Arrays
) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=4)
    with server:
        client.call("act", rows_of(0)).result()
        good = client.call("act", rows_of(1))
        with pytest.raises(ProtocolError):
            client.call("act", arrays).result()
        assert good.result()["x"].tolist() == [1]
        assert client.call("act", rows_of(2)).result()["x"].tolist() == [2]


def test_arrays_of_one_request_need_the_same_number_of_rows(address: str, client: Client) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=4)
    with server, pytest.raises(ProtocolError, match="one common leading axis"):
        client.call("act", {"a": np.zeros(2), "b": np.zeros(3)}).result()


def test_keys_may_come_in_another_order(address: str, client: Client, held: Held) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: held.handler(batch, rows) | {"y": batch["y"]}, max_rows=8)
    with server:
        first = client.call("act", {"x": np.array([1]), "y": np.array([2.0])})
        assert held.entered.wait(10)
        ordered = client.call("act", {"x": np.array([3]), "y": np.array([4.0])})
        swapped = client.call("act", {"y": np.array([5.0]), "x": np.array([6])})
        held.authenticator.set()
        first.result()
        assert (ordered.result()["double"], ordered.result()["y"]) == (6, 4.0)
        assert (swapped.result()["double"], swapped.result()["y"]) == (12, 5.0)


def test_an_error_in_the_handler_reaches_every_request_of_the_batch(address: str, client: Client, held: Held) -> None:
    def handler(batch: Arrays, rows: int) -> Arrays:
        result = held.handler(batch, rows)
        if 13 in batch["x"]:
            raise ReplayError("thirteen")
        return result

    server = BatchServer(address, name="server")
    server.bind_batch("act", handler, max_rows=4)
    with server:
        futures = queue_behind_the_first(held, client, [rows_of(12), rows_of(13)])
        for future in futures:
            with pytest.raises(ReplayError, match="thirteen"):
                future.result()
        assert client.call("act", rows_of(1)).result()["double"] == 2
        assert server.stats()["errors"] == 2
    assert held.shapes == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("result", [{"x": np.zeros(1)}, {"x": np.array(1.0)}, {"x": np.array(["a", "b"])}])
def test_a_result_without_a_row_for_every_request_is_an_error(address: str, client: Client, result: Arrays) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: result, max_rows=4)
    with server, pytest.raises(ProtocolError):
        client.call("act", rows_of(1, 2)).result()


def test_batches_may_be_kept_they_are_never_written_again(address: str, client: Client, held: Held) -> None:
    server = BatchServer(address, name="server")
    held.authenticator.set()
    server.bind_batch("act", held.handler, held.post, max_rows=4)
    with server:
        for value in range(50):
            client.call("act", rows_of(value, value, value)).result()
    for value, (batch, result, rows) in enumerate(held.posts):
        assert rows == 3
        assert not batch["x"].flags.writeable
        assert batch["x"].tolist() == [value] * 4
        assert result["double"].tolist() == [2 * value] * 4
    assert len(held.posts) == 50


def test_only_the_first_part_of_a_pair_travels_and_the_post_gets_both(address: str, client: Client) -> None:
    seen: list[Any] = []
    server = BatchServer(address, name="server")
    server.bind_batch(
        "act",
        lambda batch, rows: ({"a": batch["x"]}, {"latent": batch["x"] + 1}),
        lambda batch, result, rows: seen.append(result[1]["latent"].tolist()),
        max_rows=4,
    )
    with server:
        assert list(client.call("act", rows_of(1)).result()) == ["a"]
    assert seen == [[2]]


def test_a_post_that_blocks_holds_back_the_next_batch(address: str, client: Client) -> None:
    authenticator, posted = threading.Event(), threading.Event()
    handled: list[int] = []

    def handler(batch: Arrays, rows: int) -> Arrays:
        handled.append(int(batch["x"][0]))
        return batch

    def post(batch: Arrays, result: Any, rows: int) -> None:
        posted.set()
        assert authenticator.wait(20)

    server = BatchServer(address, name="server")
    server.bind_batch("act", handler, post, max_rows=1)
    with server:
        assert client.call("act", rows_of(1)).result()["x"] == 1
        assert posted.wait(10)
        second = client.call("act", rows_of(2))
        assert not second.done()
        assert handled == [1]
        authenticator.set()
        assert second.result()["x"] == 2


class Elsewhere:
    """A batch handler whose results are computed elsewhere. Records what happens in which order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.fetching = threading.Event()
        self.authenticator = threading.Event()

    def handler(self, batch: Arrays, rows: int) -> Callable[[], Arrays]:
        number = int(batch["x"][0])
        self.order.append(f"start {number}")

        def fetch() -> Arrays:
            self.order.append(f"fetch {number}")
            self.fetching.set()
            assert self.authenticator.wait(20)
            if number < 0:
                raise ReplayError("fetch broke")
            return batch

        return fetch

    def post(self, batch: Arrays, result: Any, rows: int) -> None:
        self.order.append(f"post {int(batch['x'][0])}")


def test_while_a_batch_is_computed_elsewhere_the_one_before_is_posted(address: str, client: Client) -> None:
    elsewhere = Elsewhere()
    server = BatchServer(address, name="server")
    server.bind_batch("act", elsewhere.handler, elsewhere.post, max_rows=1)
    with server:
        first = client.call("act", rows_of(1))
        assert elsewhere.fetching.wait(10)
        others = [client.call("act", rows_of(2)), client.call("act", rows_of(-3)), client.call("act", rows_of(4))]
        elsewhere.authenticator.set()
        assert [first.result()["x"], others[0].result()["x"]] == [1, 2]
        with pytest.raises(ReplayError, match="fetch broke"):
            others[1].result()
        assert others[2].result()["x"] == 4
        wait_until(lambda: elsewhere.order[-1] == "post 4", 10, "the last post, though nothing follows")
    expected = "start 1, fetch 1, start 2, post 1, fetch 2, start -3, post 2, fetch -3, start 4, fetch 4, post 4"
    assert ", ".join(elsewhere.order) == expected


def test_a_post_that_has_to_wait_comes_before_the_next_batch(address: str, client: Client) -> None:
    elsewhere = Elsewhere()
    server = BatchServer(address, name="server")
    server.bind_batch("act", elsewhere.handler, elsewhere.post, max_rows=1, post_waits=lambda: True)
    with server:
        first = client.call("act", rows_of(1))
        assert elsewhere.fetching.wait(10)
        second = client.call("act", rows_of(2))
        elsewhere.authenticator.set()
        assert [first.result()["x"], second.result()["x"]] == [1, 2]
    assert elsewhere.order == ["start 1", "fetch 1", "post 1", "start 2", "fetch 2", "post 2"]


def test_a_post_that_is_due_is_not_lost_when_the_server_closes(address: str, client: Client) -> None:
    elsewhere = Elsewhere()
    server = BatchServer(address, name="server")
    server.bind_batch("act", elsewhere.handler, elsewhere.post, max_rows=1)
    with server:
        client.call("act", rows_of(1))
        assert elsewhere.fetching.wait(10)
        closing = threading.Thread(target=server.close)
        closing.start()
        elsewhere.authenticator.set()
        closing.join(20)
    assert elsewhere.order == ["start 1", "fetch 1", "post 1"]


@pytest.mark.parametrize("workers", [1, 2])
def test_time_to_post_is_not_time_to_answer(address: str, client: Client, workers: int) -> None:
    elsewhere = Elsewhere()
    elsewhere.authenticator.set()
    server = BatchServer(address, name="server", workers=workers)
    server.bind_batch("act", elsewhere.handler, lambda *_: threading.Event().wait(0.05), max_rows=1)
    with server:
        for future in [client.call("act", rows_of(number)) for number in range(10)]:
            future.result()
        wait_until(lambda: server.stats()["post_s"] >= 0.5, 10, "all posts")
        assert server.stats()["handler_s"] < 0.25


def test_an_error_in_a_post_is_kept_and_the_server_lives_on(address: str, client: Client) -> None:
    def post(batch: Arrays, result: Any, rows: int) -> None:
        raise ValueError("post broke")

    errors: list[BaseException] = []
    server = BatchServer(address, name="server", on_error=errors.append)
    server.bind_batch("act", lambda batch, rows: batch, post, max_rows=4)
    with server:
        client.call("act", rows_of(1)).result()
        client.call("act", rows_of(2)).result()
    assert isinstance(server.failure, ValueError)
    assert len(errors) == server.stats()["post_errors"] == 2


def test_plain_methods_share_the_socket(address: str, client: Client) -> None:
    def broken(arrays: Arrays) -> Arrays:
        raise ReplayError("plain broke")

    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=4)
    server.bind("spaces", lambda arrays: {"n": np.array(3)})
    server.bind("broken", broken)
    with server:
        assert client.call("spaces").result()["n"] == 3
        with pytest.raises(ReplayError, match="plain broke"):
            client.call("broken").result()
        with pytest.raises(UnknownMethod, match="only act, broken, spaces"):
            client.call("other").result()
        assert client.call("act", rows_of(1)).result()["x"] == 1
    with pytest.raises(TransportError, match="bound twice"):
        server.bind("act", lambda arrays: arrays)


@pytest.mark.parametrize("repetition", range(5))
def test_with_several_workers_batches_overlap_and_posts_keep_their_order(
    address: str, client: Client, repetition: int
) -> None:
    together = threading.Barrier(2, timeout=10)
    order: list[int] = []

    def handler(batch: Arrays, rows: int) -> Arrays:
        value = int(batch["x"][0])
        if value in (0, 1):
            together.wait()
        if value == 4:
            raise ReplayError("four")
        return batch

    server = BatchServer(address, name="server", workers=2)
    server.bind_batch("act", handler, lambda batch, result, rows: order.append(int(batch["x"][0])), max_rows=1)
    server.bind_batch("free", lambda batch, rows: batch, max_rows=1)
    with server:
        futures = [client.call("act", rows_of(i)) for i in range(30)]
        assert client.call("free", rows_of(9)).result()["x"] == 9
        for value, future in enumerate(futures):
            if value == 4:
                with pytest.raises(ReplayError):
                    future.result()
            else:
                assert future.result()["x"] == value
    assert order == [i for i in range(30) if i != 4]


def test_large_rows_and_zero_size_rows_are_batched(address: str, client: Client, held: Held) -> None:
    def handler(batch: Arrays, rows: int) -> Arrays:
        return held.handler(batch, rows) | {key: batch[key] for key in ("wide", "none")}

    def request(value: int) -> Arrays:
        return rows_of(value) | {"wide": np.full((1, 300_000), value, np.uint8), "none": np.zeros((1, 0), np.float32)}

    server = BatchServer(address, name="server")
    server.bind_batch("act", handler, max_rows=4)
    with server:
        futures = [client.call("act", request(0))]
        assert held.entered.wait(10)
        futures += [client.call("act", request(value)) for value in range(1, 4)]
        held.authenticator.set()
        for value, future in enumerate(futures):
            reply = future.result()
            assert (reply["wide"] == value).all()
            assert reply["wide"].shape == (1, 300_000)
            assert reply["none"].shape == (1, 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_close_lets_a_running_batch_finish_and_leaves_nothing(held: Held, sockets: Path, workers: int) -> None:
    address = f"ipc://{sockets}/server"
    server = BatchServer(address, name="server", workers=workers)
    server.bind_batch("act", held.handler, max_rows=1)
    server.start()
    with Client(address, name="client", timeout_s=20) as client:
        running = client.call("act", rows_of(1))
        assert held.entered.wait(10)
        closer = threading.Thread(target=server.close, args=(10.0,))
        closer.start()
        held.authenticator.set()
        assert running.result()["double"] == 2
        closer.join()
    assert list(sockets.iterdir()) == []


def test_requests_that_wait_for_a_batch_are_refused_on_close(
    address: str, client: Client, held: Held, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", held.handler, max_rows=2)
    server.bind("plain", lambda arrays: arrays)
    server.start()
    running = client.call("act", rows_of(1))
    assert held.entered.wait(10)
    # Too large together for one batch: the second is taken in with the first and then waits.
    futures = [client.call("act", rows_of(2)), client.call("act", rows_of(3, 4))]
    closer = threading.Thread(target=server.close, args=(10.0,))
    closer.start()
    eventually(lambda: server._closing)
    held.authenticator.set()
    assert running.result()["double"] == 2
    closer.join()
    for future in futures:
        with pytest.raises((Disconnected, DeadlineExceeded)):
            future.result(timeout_s=0.2)


def test_statistics_tell_rows_batches_and_where_time_went(address: str, client: Client) -> None:
    server = BatchServer(address, name="server")
    server.bind_batch("act", lambda batch, rows: batch, max_rows=4)
    calls = 0

    def call() -> bool:
        nonlocal calls
        client.call("act", rows_of(1, 2)).result()
        calls += 1
        return calls >= 5 and server.stats()["wait_s"] > 0  # on a busy machine requests may come before it waits

    with server:
        wait_until(call, 20, "the server to have waited for a request")
    stats = server.stats()
    expected = (calls, calls, 2 * calls, 2.0)
    assert (stats["requests"], stats["batches"], stats["rows"], stats["rows_per_batch"]) == expected
    assert stats["queue"] == stats["errors"] == stats["malformed"] == 0
    assert stats["handler_s"] > 0
    assert min(stats["bytes_in"], stats["bytes_out"]) > 5 * 16


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exit_in_a_handler_reaches_the_role_and_the_server_goes_on(address: str, workers: int) -> None:
    failures: list[BaseException] = []

    def handler(batch: Arrays, rows: int) -> Arrays:
        if batch["x"][0] < 0:
            raise SystemExit("enough")
        return batch

    server = BatchServer(address, name="server", workers=workers, on_error=failures.append)
    server.bind_batch("act", handler, max_rows=1)
    with server, Client(address, name="client") as client:
        for _ in range(3):
            with pytest.raises(RemoteError, match="enough"):
                client.call("act", {"x": np.array([-1.0])}).result(5)
        assert client.call("act", {"x": np.array([2.0])}).result(5)["x"] == 2.0
    assert [type(failure) for failure in failures] == [SystemExit] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_post_function_that_waits_can_notify_all_that_wait_for_an_answer(address: str, workers: int) -> None:
    """Those whose requests are still in the socket too. Plain methods are answered meanwhile."""
    server = BatchServer(address, name="server", workers=workers)
    entered, sent, release = threading.Event(), threading.Event(), threading.Event()

    def post(batch: Arrays, result: Any, rows: int) -> None:
        entered.set()
        assert sent.wait(10)
        server.notify_pending()
        assert release.wait(10)

    server.bind_batch("act", lambda batch, rows: batch, post, max_rows=2)
    server.bind("join", lambda arrays: arrays)
    clients = [Client(address, name=f"worker-{number}", timeout_s=20) for number in range(6)]
    notices: list[str] = []
    for client in clients:
        client.on_pending = lambda client=client: notices.append(client.name)  # type: ignore[misc]
    with server:
        # As many batches as there are workers are answered and then wait.
        answered = [client.call("act", rows_of(0, 1)) for client in clients[:workers]]
        assert [future.result()["x"].tolist() for future in answered] == workers * [[0, 1]]
        assert entered.wait(10)
        waiting = [client.call("act", rows_of(number)) for number, client in enumerate(clients[2:])]
        joining = clients[1].call("join", rows_of(7))
        sent.set()
        assert joining.result()["x"] == 7

        def told() -> bool:
            for client in clients[2:]:
                client.poll()
            return set(notices) >= {client.name for client in clients[2:]}

        wait_until(told, 10, "notices")
        assert clients[0].name not in notices
        release.set()
        for number, future in enumerate(waiting):
            assert future.result()["x"].tolist() == [number]
    for client in clients:
        client.close()


def test_a_batch_that_is_computed_while_an_earlier_one_is_passed_on_is_pending(address: str) -> None:
    server = BatchServer(address, name="server")
    held, release = threading.Event(), threading.Event()
    posts: list[int] = []

    def post(batch: Arrays, result: Any, rows: int) -> None:
        posts.append(rows)
        if len(posts) == 1:
            assert held.wait(10)
            server.notify_pending()
            assert release.wait(10)

    def handler(batch: Arrays, rows: int) -> Callable[[], Arrays]:
        if len(posts) == 0 and rows == 2:
            held.set()  # the second batch has begun; the first one is passed on now
        return lambda: batch

    server.bind_batch("act", handler, post, max_rows=2)
    notices: list[int] = []
    with Client(address, name="first", timeout_s=20) as first, Client(address, name="second", timeout_s=20) as second:
        second.on_pending = lambda: notices.append(1)
        requests = [first.call("act", rows_of(1)), second.call("act", rows_of(2, 3))]
        with server:
            assert requests[0].result()["x"].tolist() == [1]

            def told() -> bool:
                second.poll()
                return bool(notices)

            wait_until(told, 10, "a notice")
            release.set()
            assert requests[1].result()["x"].tolist() == [2, 3]


@pytest.mark.parametrize("method", ["act", "plain", "none"])
def test_a_request_that_is_not_admitted_gets_the_error_and_changes_nothing(
    address: str, client: Client, held: Held, method: str
) -> None:
    def refuse(request: Message) -> None:
        raise ReplayError(f"no {request.layout.method}")

    held.authenticator.set()
    server = BatchServer(address, name="server")
    server.bind_batch("act", held.handler, max_rows=4)
    server.bind("plain", lambda arrays: arrays)
    server.check_request = refuse
    with server:
        with pytest.raises(ReplayError, match=f"no {method}"):
            client.call(method, rows_of(1)).result()
        assert server.stats()["errors"] == 1
    assert held.batches == []


def test_requests_of_one_peer_that_are_held_back_take_only_so_much_memory(address: str, client: Client) -> None:
    """Notices are sent for all requests, so all of them are taken in: that must not be without a limit."""
    entered, authenticator = threading.Event(), threading.Event()

    def post(batch: Arrays, result: Any, rows: int) -> None:
        if not entered.is_set():
            entered.set()
            assert authenticator.wait(20)
            server.notify_pending()

    server = BatchServer(address, name="server")
    server.max_waiting_bytes = 5000
    server.bind_batch("act", lambda batch, rows: batch, post, max_rows=1)
    with server, Client(address, name="other", timeout_s=20) as other:
        first = client.call("act", {"x": np.zeros((1, 100))})
        assert entered.wait(20)
        first.result()
        futures = [client.call("act", {"x": np.zeros((1, 100))}) for _ in range(20)]
        modest = other.call("act", {"x": np.zeros((1, 100))})
        authenticator.set()
        answers = [answer_of(future) for future in futures]
        assert answer_of(modest) == "reply"
    refused = [answer for answer in answers if "are already waiting" in answer]
    assert 10 <= len(refused) < 20


def answer_of(future: Future) -> str:
    try:
        future.result()
    except TransportError as error:
        return str(error)
    return "reply"
