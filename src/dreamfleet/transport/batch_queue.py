"""The requests that wait for a batch method, and the batches they make."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dreamfleet.core.errors import ProtocolError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.codec import Message
from dreamfleet.transport.layout import MessageLayout
from dreamfleet.transport.rows import Template, row_template
from dreamfleet.transport.service import Reply
from dreamfleet.transport.tickets import Tickets

# The padded batch and its number of valid rows. Returns the reply, or a function that waits for it.
BatchHandler = Callable[[Arrays, int], Reply | Callable[[], Reply]]
BatchPost = Callable[[Arrays, Any, int], None]  # the padded batch, what the handler returned, the valid rows

_MAX_KNOWN = 256  # descriptors remembered per method; a fleet has one for every number of rows its workers send


class BatchMethod:
    """A batch method and the requests that wait for it. Belongs to the loop thread, except for `tickets`."""

    def __init__(
        self,
        handler: BatchHandler,
        post: BatchPost | None,
        buckets: Sequence[int],
        tickets: Tickets,
        post_waits: Callable[[], bool] | None = None,
    ) -> None:
        self.handler = handler
        self.post = post
        self.buckets = buckets
        self.max_rows = self.buckets[-1]
        self.template: Template | None = None  # how a row of the first request looked
        self.pending: deque[tuple[Message, int]] = deque()
        self.pending_rows = 0
        self.tickets = tickets
        self.post_waits = post_waits
        self._known: dict[bytes, int] = {}  # rows by descriptor, for those that passed `_inspect`

    def accept(self, request: Message) -> None:
        """Queues a request, or raises ProtocolError if it cannot be batched with the others."""
        layout = request.layout
        rows = self._known.get(layout.descriptor)
        if rows is None:
            rows = self._inspect(layout)
        self.pending.append((request, rows))
        self.pending_rows += rows

    def take(self) -> RequestBatch:
        """The oldest requests that fit one batch together."""
        requests: list[Message] = []
        counts: list[int] = []
        rows = 0
        while self.pending and rows + self.pending[0][1] <= self.max_rows:
            request, count = self.pending.popleft()
            requests.append(request)
            counts.append(count)
            rows += count
        self.pending_rows -= rows
        bucket = next(size for size in self.buckets if size >= rows)
        # Only a batch that has a post-function draws a ticket, and every ticket drawn must be taken.
        ticket = None if self.post is None else self.tickets.draw()
        return RequestBatch(self, requests, counts, rows, bucket, ticket)

    def _inspect(self, layout: MessageLayout) -> int:
        rows, template = row_template(layout)
        if rows > self.max_rows:
            raise ProtocolError(f"a request to {layout.method!r} has {rows} rows, at most {self.max_rows} are allowed")
        if self.template is None:
            self.template = template
        if template != self.template:
            raise ProtocolError(
                f"a row of {layout.method!r} is {_describe(self.template)}, this request has {_describe(template)}"
            )
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[layout.descriptor] = rows
        return rows


@dataclass(eq=False)
class RequestBatch:
    method: BatchMethod
    requests: list[Message]
    counts: list[int]
    rows: int
    bucket: int
    ticket: int | None


def _describe(template: Template) -> str:
    return "{" + ", ".join(f"{key}: {dtype}{list(shape)}" for key, (dtype, shape) in sorted(template.items())) + "}"
