"""Reads TensorBoard's event files record by record, and verifies their checksums by the definition."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event


def crc32c(data: bytes) -> int:
    """Bit by bit: the polynomial of Castagnoli, reversed."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> list[Any]:
    """Every event of the only file, its checksums verified."""
    (path,) = folder.iterdir()
    assert "tfevents" in path.name
    data, found = path.read_bytes(), []
    while data:
        header, (length,) = data[:8], struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12]) == (masked(header),)
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked(body),)
        found.append(Event.FromString(body))
        data = data[16 + length :]
    return found
