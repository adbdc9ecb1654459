"""A server that runs many small requests as one batch, formed from whatever has arrived.

Natural batching: when the handler is free, it gets the rows that came while it was busy. Nothing waits for a batch to fill
up, so few clients are served at once and many clients make large batches.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from dreamfleet.core.errors import ProtocolError, TransportError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.codec import REPLY, encode, encode_error
from dreamfleet.transport.layout import Buffer, Layout
from dreamfleet.transport.router import Request
from dreamfleet.transport.rows import Template, join_rows, row_template, split_rows
from dreamfleet.transport.server import Handler
from dreamfleet.transport.service import Reply, Service, ServiceOptions, reply_of
from dreamfleet.transport.turns import Turns

BatchHandler = Callable[[Arrays, int], Reply]  # the padded batch and its number of valid rows
BatchPost = Callable[[Arrays, Any, int], None]  # the padded batch, what the handler returned, the valid rows


class _BatchMethod:
    """A batch method and the requests that wait for it. Belongs to the loop thread, except for `turns`."""

    def __init__(
        self, handler: BatchHandler, post: BatchPost | None, buckets: Sequence[int], template: Template | None
    ) -> None:
        self.handler = handler
        self.post = post
        self.buckets = tuple(sorted(buckets))
        self.max_rows = self.buckets[-1]
        self.template = template
        self.pending: deque[tuple[Request, int]] = deque()
        self.pending_rows = 0
        self.turns = Turns()
        self._known: dict[bytes, int] = {}  # rows by descriptor, for those that passed `_inspect`

    def accept(self, request: Request) -> None:
        """Queues a request, or raises ProtocolError if it cannot be batched with the others."""
        layout = request.message.layout
        rows = self._known.get(layout.descriptor)
        if rows is None:
            rows = self._inspect(layout)
        self.pending.append((request, rows))
        self.pending_rows += rows

    def take(self) -> _Batch:
        """The oldest requests that fit one batch together."""
        requests: list[Request] = []
        counts: list[int] = []
        rows = 0
        while self.pending and rows + self.pending[0][1] <= self.max_rows:
            request, count = self.pending.popleft()
            requests.append(request)
            counts.append(count)
            rows += count
        self.pending_rows -= rows
        bucket = next(size for size in self.buckets if size >= rows)
        return _Batch(self, requests, counts, rows, bucket, self.turns.draw())

    def _inspect(self, layout: Layout) -> int:
        rows, template = row_template(layout)
        if rows > self.max_rows:
            raise ProtocolError(f"a request to {layout.method!r} has {rows} rows, at most {self.max_rows} are allowed")
        if self.template is None:
            self.template = template
        if template != self.template:
            raise ProtocolError(
                f"a row of {layout.method!r} is {_describe(self.template)}, this request has {_describe(template)}"
            )
        self._known[layout.descriptor] = rows
        return rows


@dataclass
class _Batch:
    method: _BatchMethod
    requests: list[Request]
    counts: list[int]
    rows: int
    bucket: int
    number: int


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

    A batch handler is called as `handler(batch, rows)`: every array has a leading axis of one of the `buckets`, of which the
    first `rows` are requests and the rest repeats the last of them. The arrays are read-only. It returns arrays with at least
    `rows` rows, of which every request gets its own back, or a pair `(arrays, extra)`. The post-function is called as
    `post(batch, result, rows)` after the replies were sent, in the order of the batches; while it blocks, no new batch is taken.

    With one worker everything happens on the loop thread, without a hand-over between threads.
    """

    def __init__(self, addresses: str | Sequence[str], *, workers: int = 1, **options: Unpack[ServiceOptions]) -> None:
        super().__init__(addresses, **options)
        self._pool = workers
        self._batch_methods: dict[str, _BatchMethod] = {}
        self._plain_methods: dict[str, Handler] = {}
        self._counts = _Counts()
        self._wait_s = 0.0
        self._idle = workers  # workers without a batch; the loop takes, workers give back under the lock of _counts
        self._jobs: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()

    def bind_batch(
        self,
        method: str,
        handler: BatchHandler,
        post: BatchPost | None = None,
        *,
        max_rows: int,
        buckets: Sequence[int] | None = None,
        template: Mapping[str, tuple[Any, Sequence[int]]] | None = None,
    ) -> None:
        """Adds a batch method; before `start`.

        Batches are padded to the next of the `buckets`, by default the powers of two up to `max_rows`. All requests must
        look like `template`, {key: (dtype, shape of one row)}, or else like the first one.
        """
        self._check_new(method)
        sizes = {size for size in buckets or _powers_of_two(max_rows) if size < max_rows} | {max_rows}
        rows = {key: (np.dtype(dtype), tuple(shape)) for key, (dtype, shape) in template.items()} if template else None
        self._batch_methods[method] = _BatchMethod(handler, post, sorted(sizes), rows)

    def bind(self, method: str, handler: Handler) -> None:
        """Adds a plain method that runs on the loop thread, between batches: keep it quick. Before `start`."""
        self._check_new(method)
        self._plain_methods[method] = handler

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
        while not self._ending():
            self._router.flush()
            self._take_requests()
            ready = [method for method in self._batch_methods.values() if method.pending]
            if not ready or not self._idle:
                start = time.monotonic()
                self._router.wait()
                self._wait_s += time.monotonic() - start
            for method in ready:
                self._dispatch(method)

    def _take_requests(self) -> None:
        """Receives what has arrived, up to a full batch of some method: the rest waits in the socket's bounded queues."""
        while all(method.pending_rows < method.max_rows for method in self._batch_methods.values()):
            request = self._router.receive()
            if request is None:
                return
            self._accept(request)

    def _accept(self, request: Request) -> None:
        name = request.message.layout.method
        batch_method = self._batch_methods.get(name)
        try:
            if batch_method is not None:
                batch_method.accept(request)
            elif name in self._plain_methods:
                result = self._plain_methods[name](request.message.arrays())
                self._router.send(request.peer, encode(REPLY, request.message.request_id, "", reply_of(result)))
            else:
                self._refuse_unknown(request, [*self._batch_methods, *self._plain_methods])
        except Exception as error:
            with self._counts.lock:
                self._counts.errors += 1
            self._refuse(request, error)

    def _dispatch(self, method: _BatchMethod) -> None:
        if self._pool == 1:
            batch = method.take()
            self._run_batch(batch, self._router.send)
        elif self._idle:
            with self._counts.lock:
                self._idle -= 1
            self._jobs.put(method.take())

    def _work(self) -> None:
        while (batch := self._jobs.get()) is not None:
            self._run_batch(batch, self._router.hand_over)
            with self._counts.lock:
                self._idle += 1
            self._router.wake()

    def _run_batch(self, batch: _Batch, send: Callable[[bytes, list[Buffer]], None]) -> None:
        messages = [request.message for request in batch.requests]
        start = time.monotonic()
        outcome: tuple[Arrays, Reply] | None = None
        try:
            arrays = join_rows(messages, batch.rows, batch.bucket)
            result = batch.method.handler(arrays, batch.rows)
            replies = split_rows(reply_of(result), messages, batch.counts)
            outcome = arrays, result
        except Exception as error:
            replies = [encode_error(message.request_id, error) for message in messages]
        for request, frames in zip(batch.requests, replies, strict=True):
            send(request.peer, frames)
        handled = time.monotonic()
        self._run_post(batch, outcome)
        with self._counts.lock:
            self._counts.batches += 1
            self._counts.requests += len(messages)
            self._counts.rows += batch.rows
            self._counts.errors += 0 if outcome else len(messages)
            self._counts.handler_s += handled - start
            self._counts.post_s += time.monotonic() - handled

    def _run_post(self, batch: _Batch, outcome: tuple[Arrays, Reply] | None) -> None:
        """Takes the turn of this batch, also when its handler failed and there is nothing to do."""
        post = batch.method.post
        if post is None:
            return
        with batch.method.turns.take(batch.number):
            if outcome is None:
                return
            try:
                post(*outcome, batch.rows)
            except Exception as error:
                with self._counts.lock:
                    self._counts.post_errors += 1
                self._fail(error)

    def _drain(self) -> None:
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


def _powers_of_two(limit: int) -> list[int]:
    return [1 << power for power in range(limit.bit_length())]


def _describe(template: Template) -> str:
    return "{" + ", ".join(f"{key}: {dtype}{list(shape)}" for key, (dtype, shape) in sorted(template.items())) + "}"
