"""A server whose methods run on worker threads, for handlers that wait or take their time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from dreamfleet.core.errors import TransportError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.codec import REPLY, Message, encode, encode_error, encode_pending
from dreamfleet.transport.service import Service, ServiceOptions

Handler = Callable[[Arrays], Arrays | None]

_MAX_QUEUED = 1024  # requests per method


@dataclass
class _Method:
    handler: Handler
    workers: int
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards the open requests and the three figures below
    open: dict[int, Message] = field(default_factory=dict)  # those that are not answered yet, by `id`
    requests: int = 0
    errors: int = 0
    busy_s: float = 0.0
    queue: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)

    def add(self, request: Message) -> None:
        with self.lock:
            self.open[id(request)] = request
        self.queue.put(request)

    def count(self, busy_s: float, failed: bool, answered: Message | None = None) -> None:
        with self.lock:
            if answered is not None:
                del self.open[id(answered)]
            self.requests += 1
            self.errors += failed
            self.busy_s += busy_s


class Server(Service):
    """Runs each method on threads of its own; replies leave as handlers finish.

    A handler gets the request's arrays (read-only) and returns arrays or None. One that may wait for longer than a
    caller's deadline calls `notify_pending` meanwhile.
    """

    def __init__(self, addresses: str | Sequence[str], **options: Unpack[ServiceOptions]) -> None:
        super().__init__(addresses, **options)
        self._methods: dict[str, _Method] = {}

    def bind(self, method: str, handler: Handler, workers: int = 1) -> None:
        """Adds a method; before `start`. With several workers, so many of its calls run at a time."""
        if self._threads or method in self._methods:
            raise TransportError(f"server {self.name}: method {method!r} is bound twice or after the start")
        self._methods[method] = _Method(handler, workers)

    def notify_pending(self, method: str) -> None:
        """Send a notice for every open call of the method, queued ones included. For any thread."""
        found = self._methods[method]
        with found.lock:
            requests = list(found.open.values())
        for request in requests:
            self._router.hand_over(request.peer, encode_pending(request.request_id))

    def stats(self) -> dict[str, float]:
        """Totals, and `<method>/…` for each method."""
        router = self._router
        stats: dict[str, float] = {
            "malformed": router.malformed,
            "forbidden": router.forbidden,
            "bytes_in": router.bytes_in,
            "bytes_out": router.bytes_out,
        }
        for name, method in self._methods.items():
            with method.lock:
                stats[f"{name}/requests"] = method.requests
                stats[f"{name}/errors"] = method.errors
                stats[f"{name}/busy_s"] = method.busy_s
            stats[f"{name}/queue"] = method.queue.qsize()
        return stats

    def _workers(self) -> list[threading.Thread]:
        return [
            threading.Thread(target=self._work, args=(method,), name=f"{self.name}-{name}-{index}", daemon=True)
            for name, method in self._methods.items()
            for index in range(method.workers)
        ]

    def _serve(self) -> None:
        router = self._router
        while not self._ending():
            router.flush()
            router.begin_receiving()
            request = router.receive()
            if request is None:
                router.wait()
            else:
                self._enqueue(request)

    def _enqueue(self, request: Message) -> None:
        method = self._methods.get(request.layout.method)
        if method is None:
            self._refuse_unknown(request, list(self._methods))
        elif method.queue.qsize() >= _MAX_QUEUED:
            text = f"server {self.name} is busy: {_MAX_QUEUED} calls of {request.layout.method!r} wait already"
            method.count(0.0, failed=True)
            self._refuse(request, TransportError(text))
        else:
            method.add(request)

    def _drain(self) -> None:
        for method in self._methods.values():
            while True:
                try:
                    entry = method.queue.get_nowait()
                except queue.Empty:
                    break
                if entry is not None:
                    self._refuse_closed(entry)
            for _ in range(method.workers):
                method.queue.put(None)
        for thread in self._threads[1:]:
            thread.join()

    def _work(self, method: _Method) -> None:
        while (request := method.queue.get()) is not None:
            arrays = request.arrays()
            start = time.monotonic()
            failed = True
            try:
                frames = encode(REPLY, request.request_id, "", method.handler(arrays) or {})
                failed = False
            except BaseException as error:
                frames = encode_error(request.request_id, error)
                if not isinstance(error, Exception):
                    self._fail(error)  # such as SystemExit: meant for the whole role
            method.count(time.monotonic() - start, failed, request)
            self._router.hand_over(request.peer, frames)
