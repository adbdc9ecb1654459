"""How a dict of arrays lies in the frames of a message, derived from its descriptor alone.

Both ends compute the same layout from the same descriptor, so frames hold nothing but a header, the descriptor and raw
array bytes. Descriptors repeat from call to call; parsing one costs as much as a dict lookup after the first time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dreamfleet.core.encoding.bfloat16 import BFLOAT16
from dreamfleet.core.errors import ProtocolError
from dreamfleet.core.interfaces import Arrays

HEADER_BYTES = 16
ALIGN = 16  # what the memory of a received `bytes` object guarantees; more would be padding without effect
LARGE = 256 * 1024  # arrays from this size on travel in a frame of their own, sent and received without copying

MAX_DESCRIPTOR_BYTES = 64 * 1024
SHORT_DESCRIPTOR_BYTES = 4096  # of longer ones, a parsed layout takes up to a megabyte: few are remembered
MAX_MESSAGE_BYTES = 4 << 30
MAX_METHOD_CHARS = 256
MAX_KEYS = 1024
MAX_DIMENSIONS = 16

_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in _NAMES.split()} | {BFLOAT16.name: BFLOAT16}

Buffer = Any  # an object of the buffer protocol, which has no common type in Python 3.11
Spec = tuple[str, np.dtype[Any], tuple[int, ...]]


class Field(NamedTuple):
    key: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int  # bytes
    start: int  # offset in frame 0, or the index of its own frame when `large`
    large: bool


class MessageLayout:
    """The place of every array of one kind of message. Immutable and shared between threads."""

    def __init__(self, method: str, specs: Sequence[Spec], descriptor: bytes) -> None:
        self.method = method
        self.descriptor = descriptor
        body = _aligned(HEADER_BYTES + len(descriptor))
        # What `pack` joins: header, descriptor with padding, then buffer and padding in turn for every small array.
        self._parts: list[Any] = [b"", descriptor + bytes(body - HEADER_BYTES - len(descriptor))]
        self._slots: list[int] = []
        fields = []
        large = 0
        for key, dtype, shape in specs:
            size = math.prod(shape) * dtype.itemsize
            if size >= LARGE:
                fields.append(Field(key, dtype, shape, size, large, True))
                large += 1
                continue
            fields.append(Field(key, dtype, shape, size, body, False))
            self._slots.append(len(self._parts))
            self._parts.append(b"")
            if padding := -size % ALIGN:
                self._parts.append(bytes(padding))
            body += size + padding
        self.fields = tuple(fields)
        self.frame_bytes = body
        self.large_frames = large
        self._small = [(f.key, f.shape, f.dtype, f.start) for f in fields]

    @property
    def signature(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {field.key: (field.dtype, field.shape) for field in self.fields}

    def pack(self, header: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
        """Frames of a message from one contiguous buffer per array, in the order of the fields."""
        parts = self._parts.copy()
        parts[0] = header
        if not self.large_frames:
            for slot, buffer in zip(self._slots, buffers, strict=True):
                parts[slot] = buffer
            return [b"".join(parts)]
        slots = iter(self._slots)
        large: list[Buffer] = []
        for field, buffer in zip(self.fields, buffers, strict=True):
            if field.large:
                large.append(buffer)
            else:
                parts[next(slots)] = buffer
        return [b"".join(parts), *large]

    def unpack(self, frame: Buffer, large: Sequence[Any]) -> Arrays:
        """Arrays that are views of the frames; writable only if the frame is."""
        if not self.large_frames:
            # One constructor call per array: np.frombuffer plus reshape costs twice as much.
            return {key: np.ndarray(shape, dtype, frame, start) for key, shape, dtype, start in self._small}
        return {
            f.key: np.ndarray(f.shape, f.dtype, large[f.start] if f.large else frame, 0 if f.large else f.start)
            for f in self.fields
        }

    def check(self, frame_bytes: int, large_bytes: Sequence[int]) -> None:
        """Raises ProtocolError unless the frames have exactly the sizes the descriptor promises."""
        if frame_bytes != self.frame_bytes:
            raise ProtocolError(f"a message of {self.frame_bytes} bytes came with {frame_bytes}")
        if len(large_bytes) != self.large_frames:
            raise ProtocolError(f"a message with {self.large_frames} large arrays came with {len(large_bytes)} frames")
        promised = [field.size for field in self.fields if field.large]
        if promised != list(large_bytes):
            raise ProtocolError(f"large arrays of {promised} bytes came with {list(large_bytes)}")


def layout_of(method: str, arrays: Mapping[str, np.ndarray]) -> MessageLayout:
    """The layout for sending `arrays`."""
    return make_layout(method, tuple([(key, array.dtype, array.shape) for key, array in arrays.items()]))


@lru_cache(maxsize=512)
def make_layout(method: str, specs: tuple[Spec, ...]) -> MessageLayout:
    native = []
    for key, dtype, shape in specs:
        if _DTYPES.get(dtype.name) is None:
            raise ProtocolError(
                f"array {key!r} of {method!r} has dtype {dtype}, which cannot be sent: use {', '.join(_DTYPES)}"
            )
        native.append((key, _DTYPES[dtype.name], tuple(shape)))
    described = [method, [[key, dtype.name, shape] for key, dtype, shape in native]]
    descriptor = json.dumps(described, separators=(",", ":")).encode()
    _check_limits(method, native, len(descriptor))
    return MessageLayout(method, native, descriptor)


def parse_layout(descriptor: bytes) -> MessageLayout:
    """The layout a received descriptor stands for. Raises ProtocolError for anything that is not one."""
    return _parse_short(descriptor) if len(descriptor) <= SHORT_DESCRIPTOR_BYTES else _parse_long(descriptor)


@lru_cache(maxsize=512)
def _parse_short(descriptor: bytes) -> MessageLayout:
    return _parse_layout(descriptor)


@lru_cache(maxsize=16)
def _parse_long(descriptor: bytes) -> MessageLayout:
    return _parse_layout(descriptor)


def _parse_layout(descriptor: bytes) -> MessageLayout:
    try:
        method, rows = json.loads(descriptor)
        specs = [_parse_spec(*row) for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"descriptor is not [method, [[key, dtype, shape], ...]]: {error}") from None
    if not isinstance(method, str):
        raise ProtocolError("descriptor names no method")
    _check_limits(method, specs, len(descriptor))
    return MessageLayout(method, specs, descriptor)


def as_buffer(array: np.ndarray) -> np.ndarray:
    """The array itself where its memory can be sent as it lies, else a copy for which that holds."""
    dtype = array.dtype
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        array = array.copy("C")
    # NumPy cannot export bfloat16 through the buffer protocol. Every array sent comes by here: no call of `to_bits`.
    return array.view(np.uint16) if dtype == BFLOAT16 else array


def _parse_spec(key: Any, dtype: Any, shape: Any) -> Spec:
    if not isinstance(key, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise ValueError("a row has the wrong types")
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError("a shape is not a list of lengths")
    return key, _DTYPES[dtype], tuple(shape)


def _check_limits(method: str, specs: Sequence[Spec], descriptor_bytes: int) -> None:
    if len(method) > MAX_METHOD_CHARS:
        raise ProtocolError(f"a method name has {len(method)} characters, {MAX_METHOD_CHARS} are allowed")
    if descriptor_bytes > MAX_DESCRIPTOR_BYTES or len(specs) > MAX_KEYS:
        raise ProtocolError(f"{method!r} describes {len(specs)} arrays in {descriptor_bytes} bytes, which is too much")
    if len({key for key, _, _ in specs}) != len(specs):
        raise ProtocolError(f"{method!r} names an array twice")
    if any(len(shape) > MAX_DIMENSIONS for _, _, shape in specs):
        raise ProtocolError(f"an array of {method!r} has more than {MAX_DIMENSIONS} dimensions")
    # Lengths of zero count as one: NumPy refuses huge shapes even where they hold nothing.
    total = sum(math.prod(max(length, 1) for length in shape) * dtype.itemsize for _, dtype, shape in specs)
    if total > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"the arrays of {method!r} have {total} bytes, {MAX_MESSAGE_BYTES} are allowed")


def _aligned(size: int) -> int:
    return size + -size % ALIGN
