from __future__ import annotations

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dreamfleet.core.errors import ProtocolError, RemoteError, SpaceMismatch
from dreamfleet.transport.codec import (
    ERROR,
    REPLY,
    REQUEST,
    VERSION,
    Message,
    Pending,
    PreparedRequest,
    RemoteFailure,
    decode,
    encode,
    encode_error,
    encode_pending,
    pack_json,
    peek_request_id,
    unpack_json,
)
from dreamfleet.transport.layout import LARGE

NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
DTYPES = [np.dtype(ml_dtypes.bfloat16), *map(np.dtype, NAMES.split())]


def deliver(frames: list[Any]) -> Message:
    """What the receiver sees: bytes for the first frame, buffers for the others."""
    message = decode(bytes(frames[0]), [memoryview(np.ascontiguousarray(f)).cast("B") for f in frames[1:]])
    assert isinstance(message, Message)
    return message


def round_trip(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return deliver(encode(REQUEST, 7, "method", arrays)).arrays()


def raw_arrays() -> st.SearchStrategy[np.ndarray]:
    """Arrays of every sendable dtype, from raw bytes so that NaN payloads and negative zeros are among them."""

    def build(dtype: np.dtype[Any], shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
        if dtype == np.bool_:
            return hnp.arrays(dtype, shape)
        size = int(np.prod(shape)) * dtype.itemsize
        return st.binary(min_size=size, max_size=size).map(
            lambda data: np.frombuffer(data, np.uint8).copy().view(dtype).reshape(shape)
        )

    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    return st.tuples(st.sampled_from(DTYPES), shapes).flatmap(lambda pair: build(*pair))


@given(st.dictionaries(st.text(max_size=20), raw_arrays(), max_size=6), st.integers(0, 2**64 - 1))
@settings(max_examples=150, deadline=None)
def test_arrays_arrive_bit_for_bit(arrays: dict[str, np.ndarray], request_id: int) -> None:
    message = deliver(encode(REPLY, request_id, "", arrays))
    received = message.arrays()
    assert message.request_id == request_id
    assert list(received) == list(arrays)
    for key, array in arrays.items():
        assert received[key].dtype == array.dtype
        assert received[key].shape == array.shape
        assert received[key].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_values(dtype: np.dtype[Any]) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    np.testing.assert_array_equal(round_trip({"x": array})["x"], array)


def test_arrays_that_are_not_contiguous_arrive_in_their_logical_order() -> None:
    array = np.arange(24).reshape(4, 6)
    sent = {"t": array.T, "step": array[::2, ::-3], "fortran": np.asfortranarray(array), "big": array.astype(">i4")}
    received = round_trip(sent)
    for key, value in sent.items():
        np.testing.assert_array_equal(received[key], value)
    assert received["big"].dtype == np.int32


def test_large_arrays_travel_in_frames_of_their_own_without_a_copy() -> None:
    large = np.arange(LARGE // 4, dtype=np.int32)
    almost = np.zeros(LARGE - 1, np.uint8)
    frames = encode(REQUEST, 1, "m", {"a": large, "small": np.array(3), "almost": almost, "b": large[::-1]})
    assert len(frames) == 3
    assert np.shares_memory(frames[1], large)
    received = deliver(frames).arrays()
    np.testing.assert_array_equal(received["a"], large)
    np.testing.assert_array_equal(received["b"], large[::-1])
    assert received["small"] == 3


def test_received_arrays_are_read_only_views_of_aligned_memory() -> None:
    message = deliver(
        encode(REQUEST, 1, "m", {"a": np.zeros(3, np.uint8), "b": np.zeros(5), "c": np.zeros(2, np.int16)})
    )
    for array in message.arrays().values():
        assert not array.flags.writeable
        assert array.flags.aligned
        assert np.shares_memory(array, np.frombuffer(message.frame, np.uint8))


@pytest.mark.parametrize(
    "value",
    [np.array(["text"]), np.array([None]), np.zeros(2, complex), np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4"), 3.0, [1]],
)
def test_values_that_are_not_plain_arrays_cannot_be_sent(value: Any) -> None:
    with pytest.raises(ProtocolError):
        encode(REQUEST, 1, "m", {"x": value})


def test_an_outgoing_message_sends_what_its_arrays_hold_at_the_time() -> None:
    specs = {"image": (np.uint8, (2, 3)), "reward": (np.float32, ()), "wide": (np.uint8, (LARGE,))}
    request = PreparedRequest("act", specs)
    for number in range(3):
        request.arrays["image"][...] = number
        request.arrays["reward"][...] = number / 2
        request.arrays["wide"][...] = number + 1
        request.number(number)
        message = deliver([bytes(frame) for frame in request.frames[:1]] + [np.array(f) for f in request.frames[1:]])
        received = message.arrays()
        assert (message.request_id, message.layout.method) == (number, "act")
        assert (received["image"] == number).all()
        assert received["reward"] == number / 2
        assert (received["wide"] == number + 1).all()


def test_an_expected_error_keeps_its_type_and_message() -> None:
    failure = decode(bytes(encode_error(9, SpaceMismatch("image has 3 channels"))[0]))
    assert isinstance(failure, RemoteFailure)
    assert failure.request_id == 9
    assert type(failure.error) is SpaceMismatch
    assert str(failure.error) == "image has 3 channels"


def test_an_unexpected_error_arrives_as_a_remote_error_with_the_traceback() -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    try:
        broken()
    except ZeroDivisionError as error:
        failure = decode(bytes(encode_error(1, error)[0]))
    assert isinstance(failure, RemoteFailure)
    assert type(failure.error) is RemoteError
    assert str(failure.error) == "ZeroDivisionError: by zero"
    assert "in broken" in failure.error.__notes__[0]


def test_json_survives_and_anything_else_is_refused() -> None:
    value = {"a": [1, 2.5, None, "ü"], "b": {}}
    assert unpack_json(pack_json(value)) == value
    for array in [np.zeros(3, np.float32), np.zeros((2, 2), np.uint8), np.frombuffer(b"{nope", np.uint8)]:
        with pytest.raises(ProtocolError):
            unpack_json(array)


def frame_of(
    descriptor: bytes, body: bytes = b"", *, magic: bytes = b"DF", version: int = VERSION, kind: int = REQUEST
) -> bytes:
    """A frame put together by hand, so that any part of it can be wrong."""
    head = struct.pack("<2sBBIQ", magic, version, kind, len(descriptor), 5) + descriptor
    return head + bytes(-len(head) % 16) + body


def described(*rows: Any, method: Any = "m") -> bytes:
    return json.dumps([method, list(rows)]).encode()


GOOD = described(["x", "uint8", [16]])


def test_a_notice_that_a_call_is_pending_names_the_call() -> None:
    (frame,) = encode_pending(2**40)
    assert decode(bytes(frame)) == Pending(2**40)
    with pytest.raises(ProtocolError, match="without arrays came with 1 further"):
        decode(bytes(frame), [memoryview(b"more")])


def test_the_frame_the_malformed_ones_are_made_from_is_good() -> None:
    assert isinstance(decode(frame_of(GOOD, bytes(16))), Message)


@pytest.mark.parametrize(
    "frame",
    {
        "empty": b"",
        "short header": b"DF\x01\x01",
        "wrong magic": frame_of(GOOD, bytes(16), magic=b"PK"),
        "other version": frame_of(GOOD, bytes(16), version=VERSION + 1),
        "unknown kind": frame_of(GOOD, bytes(16), kind=0),
        "descriptor beyond the frame": struct.pack("<2sBBIQ", b"DF", 1, 1, 2**31, 5) + GOOD,
        "no descriptor": frame_of(b""),
        "not json": frame_of(b"{]"),
        "not utf-8": frame_of(b'["\xff",[]]'),
        "deep json": frame_of(b"[" * 60_000),
        "long number": frame_of(b'["m",[["x","uint8",[' + b"9" * 5000 + b"]]]]"),
        "json of another shape": frame_of(b"{}"),
        "method is a number": frame_of(described(["x", "uint8", [16]], method=3), bytes(16)),
        "method too long": frame_of(described(method="m" * 300)),
        "row too short": frame_of(described(["x", "uint8"])),
        "key is a number": frame_of(described([1, "uint8", [16]]), bytes(16)),
        "key twice": frame_of(described(["x", "uint8", [16]], ["x", "uint8", [16]]), bytes(32)),
        "unknown dtype": frame_of(described(["x", "object", [2]]), bytes(16)),
        "complex dtype": frame_of(described(["x", "complex64", [2]]), bytes(16)),
        "dtype is a list": frame_of(described(["x", ["uint8"], [2]]), bytes(16)),
        "negative length": frame_of(described(["x", "uint8", [-16]])),
        "fractional length": frame_of(described(["x", "uint8", [16.0]]), bytes(16)),
        "boolean length": frame_of(described(["x", "uint8", [True]]), bytes(16)),
        "too many dimensions": frame_of(described(["x", "uint8", [1] * 17]), bytes(16)),
        "too large": frame_of(described(["x", "float64", [2**40]])),
        "huge but holding nothing": frame_of(described(["x", "uint8", [2**40, 2**40, 0]])),
        "too many keys": frame_of(described(*[[str(i), "uint8", [0]] for i in range(2000)])),
        "body too short": frame_of(GOOD, bytes(15)),
        "body too long": frame_of(GOOD, bytes(17)),
        "missing large frame": frame_of(described(["x", "uint8", [LARGE]])),
        "error that is not one": frame_of(b"[1]", kind=ERROR),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_malformed_frame_is_a_protocol_error(frame: tuple[str, bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frame[1])


@pytest.mark.parametrize("large", [[bytes(LARGE - 1)], [bytes(LARGE)] * 2, []], ids=["too small", "too many", "none"])
def test_large_frames_must_match_the_descriptor(large: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frame_of(described(["x", "uint8", [LARGE]])), large)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_never_anything_but_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)
    with pytest.raises(ProtocolError):
        decode(frame_of(data))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_frame_decodes_or_is_a_protocol_error(data: st.DataObject) -> None:
    frame = bytearray(encode(REQUEST, 1, "m", {"x": np.arange(4), "y": np.array(1.0)})[0])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))]
    try:
        message = decode(bytes(frame))
    except ProtocolError:
        return
    if isinstance(message, Message):
        message.arrays()


def test_the_request_id_of_a_damaged_frame_can_still_be_read() -> None:
    assert peek_request_id(frame_of(b"{]")) == 5
    assert peek_request_id(b"DF") is None
    assert peek_request_id(frame_of(GOOD, magic=b"XX")) is None
