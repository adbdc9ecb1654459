"""The wire format: messages to frames and back, without pickle.

    frame 0:  header '<2sBBIQ' (magic, version, kind, descriptor bytes, request id) | descriptor | padding | small
    arrays frame 1…: one array of at least `LARGE` bytes each, in the order of the descriptor

The descriptor of a request or reply is JSON, `[method, [[key, dtype, shape], ...]]`; that of an error is `[type,
message, trace]`. A notice that a call is pending has none. The descriptor travels with every message: a connection then
has no state that a reconnect could break, and the receiver recognises the bytes of a known descriptor without parsing
them.
"""

from __future__ import annotations

import json
import struct
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.encoding import packed_json
from dreamfleet.core.errors import DreamfleetError, ProtocolError, RemoteError, known_errors
from dreamfleet.core.interfaces import Arrays
from dreamfleet.transport.layout import (
    HEADER_BYTES,
    MAX_DESCRIPTOR_BYTES,
    Buffer,
    Field,
    MessageLayout,
    as_buffer,
    layout_of,
    make_layout,
    parse_layout,
)

MAGIC = b"DF"
VERSION = 2
REQUEST, REPLY, ERROR, PENDING = 1, 2, 3, 4
MAX_JSON_BYTES = 16 << 20
_MAX_ERROR_CHARS = 4096

_header = struct.Struct("<2sBBIQ")
_request_id = struct.Struct("<Q")
_REQUEST_ID_AT = 8


class Message:
    """A received request or reply. `arrays()` are read-only views of its frames and keep them alive."""

    __slots__ = ("frame", "kind", "large", "layout", "limited", "peer", "request_id")

    def __init__(self, kind: int, request_id: int, layout: MessageLayout, frame: bytes) -> None:
        self.kind = kind
        self.request_id = request_id
        self.layout = layout
        self.frame = frame
        self.large: Sequence[Any] = ()
        self.peer = b""  # whom to answer; the server's socket fills it in
        self.limited = False  # whether its key may not call everything; looked up for methods that need to know

    def attach(self, large: Sequence[Any]) -> None:
        """Adds the frames of large arrays. Raises ProtocolError unless all frames have the promised sizes."""
        layout = self.layout
        if large or layout.large_frames or len(self.frame) != layout.frame_bytes:
            layout.check(len(self.frame), [len(part) for part in large])
            self.large = large

    @property
    def nbytes(self) -> int:
        return len(self.frame) + sum(map(len, self.large))

    def array(self, field: Field) -> np.ndarray:
        """One of the arrays."""
        if field.large:
            return np.ndarray(field.shape, field.dtype, self.large[field.start])
        return np.ndarray(field.shape, field.dtype, self.frame, field.start)

    def arrays(self) -> Arrays:
        return self.layout.unpack(self.frame, self.large)


class PreparedRequest:
    """A request with memory of its own, for callers that send the same kind of message over and over.

    Fill `arrays` in place and pass this to `Client.send`. Sending copies, so it may be refilled as soon as `send`
    returns.
    """

    def __init__(self, method: str, specs: Mapping[str, tuple[Any, Sequence[int]]]) -> None:
        rows = tuple((key, np.dtype(dtype), tuple(shape)) for key, (dtype, shape) in specs.items())
        self.layout = make_layout(method, rows)
        self.method = method
        self._frame = bytearray(self.layout.frame_bytes)
        self._large = [bytearray(field.size) for field in self.layout.fields if field.large]
        descriptor = self.layout.descriptor
        self._frame[HEADER_BYTES : HEADER_BYTES + len(descriptor)] = descriptor
        self._frame[:HEADER_BYTES] = _header.pack(MAGIC, VERSION, REQUEST, len(descriptor), 0)
        self.frames: list[Buffer] = [self._frame, *self._large]
        self.arrays: Arrays = self.layout.unpack(self._frame, self._large)

    def number(self, request_id: int) -> None:
        """Stamps the id the reply will carry."""
        _request_id.pack_into(self._frame, _REQUEST_ID_AT, request_id)


def encode(kind: int, request_id: int, method: str, arrays: Mapping[str, np.ndarray]) -> list[Buffer]:
    """Frames of a request or reply. Large arrays are not copied: leave them unchanged until they have left."""
    try:
        layout = layout_of(method, arrays)
        buffers = [as_buffer(array) for array in arrays.values()]
    except AttributeError:
        types = {key: type(value).__name__ for key, value in arrays.items()}
        raise ProtocolError(f"only NumPy arrays can be sent, {method!r} was given {types}") from None
    return encode_buffers(kind, request_id, layout, buffers)


def encode_buffers(kind: int, request_id: int, layout: MessageLayout, buffers: Sequence[Buffer]) -> list[Buffer]:
    header = _header.pack(MAGIC, VERSION, kind, len(layout.descriptor), request_id)
    return layout.pack(header, buffers)


def encode_error(request_id: int, error: BaseException) -> list[Buffer]:
    """An error keeps its type and message; one nobody expected also brings its traceback along."""
    trace = "" if isinstance(error, DreamfleetError) else "".join(traceback.format_exception(error))
    text = [type(error).__name__, str(error)[:_MAX_ERROR_CHARS], trace[-_MAX_ERROR_CHARS:]]
    descriptor = json.dumps(text).encode()
    return [_header.pack(MAGIC, VERSION, ERROR, len(descriptor), request_id) + descriptor]


def encode_pending(request_id: int) -> list[Buffer]:
    """The notice that a call is not forgotten, for an answer that takes longer than the caller's deadline."""
    return [_header.pack(MAGIC, VERSION, PENDING, 0, request_id)]


def peek_request_id(frame: bytes) -> int | None:
    """The request id of a frame that may be malformed otherwise, or None if it is not even ours."""
    if len(frame) < HEADER_BYTES or frame[:2] != MAGIC:
        return None
    request_id: int = _request_id.unpack_from(frame, _REQUEST_ID_AT)[0]
    return request_id


def decode(frame: bytes, large: Sequence[Any] = ()) -> Message | RemoteFailure | Pending:
    """Checks and opens a message. Raises ProtocolError for whatever does not follow the format."""
    message = decode_first(frame)
    if isinstance(message, Message):
        message.attach(large)
    elif large:
        raise ProtocolError(f"a message without arrays came with {len(large)} further frames")
    return message


def decode_first(frame: bytes) -> Message | RemoteFailure | Pending:
    """Opens the first frame of a message, which tells how many others belong to it; `attach` must follow."""
    if len(frame) < HEADER_BYTES:
        raise ProtocolError(f"a frame of {len(frame)} bytes has no room for a header")
    magic, version, kind, length, request_id = _header.unpack_from(frame)
    if magic != MAGIC:
        raise ProtocolError(f"a frame starts with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise ProtocolError(
            f"the peer speaks protocol version {version}, this side {VERSION}: install the same release"
        )
    end = HEADER_BYTES + length
    if length > MAX_DESCRIPTOR_BYTES or end > len(frame):
        raise ProtocolError(f"a descriptor of {length} bytes does not fit a frame of {len(frame)}")
    descriptor = frame[HEADER_BYTES:end]
    if kind == ERROR:
        return RemoteFailure(request_id, _parse_error(descriptor))
    if kind == PENDING:
        return Pending(request_id)
    if kind not in (REQUEST, REPLY):
        raise ProtocolError(f"unknown message kind {kind}")
    return Message(kind, request_id, parse_layout(descriptor), frame)


class RemoteFailure(NamedTuple):
    """A received error reply."""

    request_id: int
    error: DreamfleetError


class Pending(NamedTuple):
    """A received notice that a call is pending."""

    request_id: int


def _parse_error(descriptor: bytes) -> DreamfleetError:
    try:
        name, message, trace = json.loads(descriptor)
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("an error reply is not [type, message, trace]") from None
    kind = known_errors().get(str(name))
    error = kind(str(message)) if kind else RemoteError(f"{name}: {message}")
    if trace:
        error.add_note(f"On the server:\n{trace}")
    return error


def pack_json(value: Any) -> np.ndarray:
    """Structured text as an array, for the few messages that are not numbers."""
    array = packed_json.pack_json(value, compact=True)
    if array.size > MAX_JSON_BYTES:
        raise ProtocolError(f"a JSON value of {array.size} bytes is too large to send, {MAX_JSON_BYTES} are allowed")
    return array


def unpack_json(array: np.ndarray) -> Any:
    if array.dtype != np.uint8 or array.ndim != 1 or array.size > MAX_JSON_BYTES:
        raise ProtocolError(f"an array of {array.dtype} with shape {array.shape} is not packed JSON")
    try:
        return packed_json.unpack_json(array)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"packed JSON cannot be read: {error}") from None
