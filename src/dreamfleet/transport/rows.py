"""Rows of several requests to one batch, and the batch's result back to one reply per request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dreamfleet.core.errors import ProtocolError
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.codec import REPLY, Message, encode_buffers
from dreamfleet.transport.layout import Buffer, MessageLayout, as_buffer, make_layout

Template = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape of one row


def row_template(layout: MessageLayout) -> tuple[int, Template]:
    """The rows a request carries and what one of them looks like."""
    if not layout.fields:
        raise ProtocolError(f"a request to {layout.method!r} carries no arrays, so it has no rows")
    lengths = {field.shape[:1] for field in layout.fields}
    if len(lengths) != 1 or () in lengths or (0,) in lengths:
        shapes = {field.key: field.shape for field in layout.fields}
        raise ProtocolError(
            f"the arrays of {layout.method!r} need one common leading axis of at least 1 row, got {shapes}"
        )
    return layout.fields[0].shape[0], {field.key: (field.dtype, field.shape[1:]) for field in layout.fields}


def join_rows(messages: Sequence[Message], rows: int, bucket: int) -> Arrays:
    """One batch of `bucket` rows from requests that have `rows` together; the last row fills up the rest.

    The result is read-only memory of its own, so it can be passed on and sent without copying. A single request that
    fills the bucket is not copied at all.
    """
    if len(messages) == 1 and rows == bucket:
        return messages[0].arrays()
    layout = messages[0].layout
    alike = all(message.layout is layout for message in messages)
    frames = [memoryview(message.frame) for message in messages]
    batch: Arrays = {}
    for field in layout.fields:
        if alike and not field.large:
            # By far the most frequent case, worth a path of its own: clients that send the same number of rows.
            start, end = field.start, field.start + field.size
            parts: list[Buffer] = [frame[start:end] for frame in frames]
        else:
            parts = [_field_bytes(message, field.key) for message in messages]
        if bucket > rows:
            last = parts[-1]
            parts.extend([last[len(last) - field.size // field.shape[0] :]] * (bucket - rows))
        batch[field.key] = np.ndarray((bucket, *field.shape[1:]), field.dtype, b"".join(parts))
    return batch


def _field_bytes(message: Message, key: str) -> memoryview:
    """The bytes of one array, wherever its sender put it: keys may come in another order from another client."""
    field = next(field for field in message.layout.fields if field.key == key)
    if field.large:
        return memoryview(message.large[field.start])
    return memoryview(message.frame)[field.start : field.start + field.size]


def split_rows(result: Arrays, messages: Sequence[Message], row_counts: Sequence[int]) -> list[list[Buffer]]:
    """The frames of the reply to each request: its rows of the result, in the order of the requests."""
    rows = sum(row_counts)
    sources: list[tuple[Buffer, int]] = []
    for key, array in result.items():
        if array.ndim == 0 or array.shape[0] < rows:
            raise ProtocolError(f"the handler's result {key!r} needs at least {rows} rows, it has shape {array.shape}")
        row_bytes = array.itemsize * math.prod(array.shape[1:])
        data: Buffer = as_buffer(array) if array.size else b""
        sources.append((memoryview(data).cast("B"), row_bytes))
    layouts = {
        count: make_layout("", tuple([(key, a.dtype, (count, *a.shape[1:])) for key, a in result.items()]))
        for count in set(row_counts)
    }
    replies = []
    start = 0
    for message, count in zip(messages, row_counts, strict=True):
        buffers = [data[start * size : (start + count) * size] for data, size in sources]
        replies.append(encode_buffers(REPLY, message.request_id, layouts[count], buffers))
        start += count
    return replies
