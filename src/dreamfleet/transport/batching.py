"""A server that runs many small requests as one batch, formed from whatever has arrived.

Natural batching: when the handler is free, it gets the rows that came while it was busy. Nothing waits for a batch to
fill up, so few clients are served at once and many clients make large batches.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from dreamfleet.core.errors import TransportError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.batch_queue import BatchHandler, BatchMethod, BatchPost, RequestBatch
from dreamfleet.transport.codec import REPLY, Message, encode, encode_error, encode_pending
from dreamfleet.transport.layout import Buffer
from dreamfleet.transport.rows import join_rows, split_rows
from dreamfleet.transport.server import Handler
from dreamfleet.transport.service import Reply, Service, ServiceOptions, reply_of
from dreamfleet.transport.tickets import Tickets

MAX_WAITING_BYTES = 32 << 20
NOTIFY_MESSAGES, NOTIFY_S = 1 << 16, 0.1  # taken in with each notice, so that those get one too
Outcome = tuple[Arrays, Reply]  # a batch and its result


@dataclass
class _Counts:
    """Figures of the server. Workers and the loop add to them under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    requests: int = 0
    batches: int = 0
    rows: int = 0
    errors: int = 0
    post_errors: int = 0
    handler_s: float = 0.0
    post_s: float = 0.0


class BatchServer(Service):
    """Batch methods and quick plain methods on one socket.

    A batch handler is called as `handler(batch, rows)`: every array has a leading axis of one of the `bucket_sizes`, of
    which the first `rows` are requests and the rest repeats the last of them. The arrays are read-only. It returns
    arrays with at least `rows` rows, of which every request gets its own back, or a pair `(arrays, extra)`. The
    post-function is called as `post(batch, result, rows)` after the replies were sent, in the order of the batches;
    while it blocks, nobody is answered.

    With one worker everything happens on the loop thread, without a hand-over between threads. There a handler may
    return a function instead, which waits for the result: while that is computed elsewhere, the loop catches up on the
    post-function of the batch before.

    A post-function that may wait for longer than a caller's deadline calls `notify_pending` meanwhile.
    """

    def __init__(self, addresses: str | Sequence[str], *, workers: int = 1, **options: Unpack[ServiceOptions]) -> None:
        super().__init__(addresses, **options)
        self._pool = workers
        self._batch_methods: dict[str, BatchMethod] = {}
        self._plain_methods: dict[str, Handler] = {}
        self._tickets = Tickets()  # of all methods together: post-functions may share what they write to
        self._counts = _Counts()
        self._wait_s = 0.0
        self._idle = workers  # workers without a batch; the loop takes, workers give back under the lock of _counts
        self._jobs: queue.SimpleQueue[RequestBatch | None] = queue.SimpleQueue()
        self._owed: tuple[RequestBatch, Outcome] | None = (
            None  # whose post-function is to be called; of the loop thread
        )
        self._unanswered: set[RequestBatch] = set()  # those that are computed; under the lock of _counts
        self._should_notify = False
        self.max_waiting_bytes = MAX_WAITING_BYTES  # of one peer's requests, while those before them are held back
        self.check_request: Callable[[Message], None] | None = None  # raises what a request is answered with instead

    def bind_batch(
        self,
        method: str,
        handler: BatchHandler,
        post: BatchPost | None = None,
        *,
        max_rows: int,
        post_waits: Callable[[], bool] | None = None,
    ) -> None:
        """Adds a batch method; before `start`.

        A post-function that is put off is called before the next batch begins, and not after, if `post_waits` says that
        it would have to wait for something.

        Batches are padded to the next of `bucket_sizes(max_rows)`. All requests must look like the first one.
        """
        self._check_new(method)
        self._batch_methods[method] = BatchMethod(handler, post, bucket_sizes(max_rows), self._tickets, post_waits)

    def bind(self, method: str, handler: Handler, identify: bool = False) -> None:
        """Adds a plain method that runs on the loop thread, between batches: keep it quick. Before `start`.

        With `identify`, its requests say whether they came with a key that may not call everything.
        """
        self._check_new(method)
        if identify:
            self._router.identified.add(method)
        self._plain_methods[method] = handler

    def notify_pending(self) -> None:
        """Send a notice for every request that is not answered yet. For post-functions, in whatever thread they run."""
        if self._pool == 1:
            self._notify_pending()
        else:
            self._should_notify = True
            self._router.wake()

    def stats(self) -> dict[str, float]:
        counts, router = self._counts, self._router
        with counts.lock:
            return {
                "requests": counts.requests,
                "batches": counts.batches,
                "rows": counts.rows,
                "rows_per_batch": counts.rows / max(1, counts.batches),
                "errors": counts.errors,
                "post_errors": counts.post_errors,
                "wait_s": self._wait_s,
                "handler_s": counts.handler_s,
                "post_s": counts.post_s,
                "queue": sum(len(method.pending) for method in self._batch_methods.values()),
                "malformed": router.malformed,
                "forbidden": router.forbidden,
                "bytes_in": router.bytes_in,
                "bytes_out": router.bytes_out,
            }

    def _workers(self) -> list[threading.Thread]:
        if self._pool == 1:
            return []
        return [
            threading.Thread(target=self._work, name=f"{self.name}-worker-{index}", daemon=True)
            for index in range(self._pool)
        ]

    def _serve(self) -> None:
        router = self._router
        while not self._ending():
            router.flush()
            if self._should_notify:
                self._notify_pending()
            if self._idle and self._dispatch_ready():
                continue
            if self._owed:
                self._run_owed()
                continue
            start = time.monotonic()
            # Without a free worker, requests stay in the socket: they will make a larger batch.
            router.wait(requests=self._idle > 0)
            # Where cores are scarce, clients that are about to send get to do so: a larger batch. Elsewhere it is free.
            os.sched_yield()
            self._wait_s += time.monotonic() - start

    def _dispatch_ready(self) -> bool:
        """Takes in requests and starts a batch of every method that has some; whether there was one."""
        self._take_requests()
        ready = [method for method in self._batch_methods.values() if method.pending]
        for method in ready:
            if self._pool == 1:
                self._run_batch(method.take(), self._router.send)
            elif self._idle:
                with self._counts.lock:
                    self._idle -= 1
                self._jobs.put(method.take())
        return bool(ready)

    def _notify_pending(self) -> None:
        """Take in requests first, since those in the socket have deadlines too. Runs on the loop thread."""
        self._should_notify = False
        waiting: Counter[bytes] = Counter()  # bytes by peer
        for method in self._batch_methods.values():
            for request, _ in method.pending:
                waiting[request.peer] += request.nbytes
        self._router.begin_receiving(NOTIFY_MESSAGES, NOTIFY_S)
        while (received := self._router.receive()) is not None:
            waiting[received.peer] += received.nbytes
            if waiting[received.peer] <= self.max_waiting_bytes:
                self._take(received)
            else:
                waits = f"more than {self.max_waiting_bytes >> 20} MiB of this worker's requests are already waiting"
                self._refuse_counted(received, TransportError(f"{waits}: use several workers"))
        with self._counts.lock:
            requests = [request for batch in self._unanswered for request in batch.requests]
        requests += [request for method in self._batch_methods.values() for request, _ in method.pending]
        for request in requests:
            self._router.send(request.peer, encode_pending(request.request_id))

    def _take_requests(self) -> None:
        """Receives what has arrived, up to a full batch of some method or the end of the turn.

        The rest waits in the socket.
        """
        methods = self._batch_methods.values()
        if any(method.pending_rows >= method.max_rows for method in methods):
            return
        self._router.begin_receiving()
        receive = self._router.receive
        while (request := receive()) is not None:
            if self._take(request):
                return

    def _take(self, request: Message) -> bool:
        """Queues a request; whether its method now has a full batch. A plain method runs at once."""
        method = self._batch_methods.get(request.layout.method)
        try:
            if self.check_request is not None:
                self.check_request(request)
            if method is not None:
                method.accept(request)
        except Exception as error:
            self._refuse_counted(request, error)
            return False
        if method is None:
            self._run_plain(request)
            return False
        return method.pending_rows >= method.max_rows

    def _run_plain(self, request: Message) -> None:
        handler = self._plain_methods.get(request.layout.method)
        if handler is None:
            self._refuse_unknown(request, [*self._batch_methods, *self._plain_methods])
            return
        try:
            reply = handler(request.arrays()) or {}
            self._router.send(request.peer, encode(REPLY, request.request_id, "", reply))
        except Exception as error:
            self._refuse_counted(request, error)

    def _refuse_counted(self, request: Message, error: Exception) -> None:
        with self._counts.lock:
            self._counts.errors += 1
        self._refuse(request, error)

    def _work(self) -> None:
        while (batch := self._jobs.get()) is not None:
            try:
                self._run_batch(batch, self._router.hand_over)
            finally:
                with self._counts.lock:
                    self._idle += 1
                self._router.wake()

    def _run_batch(self, batch: RequestBatch, send: Callable[[bytes, list[Buffer]], None]) -> None:
        with self._counts.lock:
            self._unanswered.add(batch)
        if self._owed and (waits := self._owed[0].method.post_waits) and waits():
            self._run_owed()
        messages = batch.requests
        start, posted_s, elsewhere = time.monotonic(), 0.0, False
        outcome: Outcome | None = None
        try:
            arrays = join_rows(messages, batch.rows, batch.bucket)
            result = batch.method.handler(arrays, batch.rows)
            if callable(result):
                posted_s, elsewhere = self._run_owed(), True
                result = result()
            replies = split_rows(reply_of(result), messages, batch.counts)
            outcome = arrays, result
        except BaseException as error:
            replies = [encode_error(message.request_id, error) for message in messages]
            if not isinstance(error, Exception):
                self._fail(error)  # such as SystemExit: meant for the whole role
        for request, frames in zip(messages, replies, strict=True):
            send(request.peer, frames)
        with self._counts.lock:
            self._unanswered.discard(batch)
            self._counts.batches += 1
            self._counts.requests += len(messages)
            self._counts.rows += batch.rows
            self._counts.errors += 0 if outcome else len(messages)
            self._counts.handler_s += time.monotonic() - start - posted_s
        if outcome and elsewhere and self._pool == 1:
            self._owed = batch, outcome  # after the next batch has begun, if there is one
        else:
            self._run_owed()
            self._run_post(batch, outcome)

    def _run_owed(self) -> float:
        """Catches up on a post-function; the seconds it took."""
        if self._owed is None:
            return 0.0
        owed, self._owed = self._owed, None
        return self._run_post(*owed)

    def _run_post(self, batch: RequestBatch, outcome: Outcome | None) -> float:
        """Take the ticket of this batch, also when its handler failed and there is nothing to do."""
        post = batch.method.post
        if post is None or batch.ticket is None:
            return 0.0
        start = time.monotonic()
        with self._tickets.take(batch.ticket):
            if outcome is None:
                return 0.0
            try:
                post(*outcome, batch.rows)
            except BaseException as error:
                with self._counts.lock:
                    self._counts.post_errors += 1
                self._fail(error)
        took = time.monotonic() - start
        with self._counts.lock:
            self._counts.post_s += took
        return took

    def _drain(self) -> None:
        self._run_owed()
        for method in self._batch_methods.values():
            for request, _ in method.pending:
                self._refuse_closed(request)
            method.pending.clear()
        for _ in self._threads[1:]:
            self._jobs.put(None)
        for thread in self._threads[1:]:
            thread.join()

    def _check_new(self, method: str) -> None:
        if self._threads or method in self._batch_methods or method in self._plain_methods:
            raise TransportError(f"server {self.name}: method {method!r} is bound twice or after the start")


def bucket_sizes(max_rows: int) -> list[int]:
    """The sizes that batches of up to `max_rows` are padded to: powers of two, and `max_rows` itself."""
    return sorted({1 << power for power in range(max_rows.bit_length())} | {max_rows})
