"""Reads files that may come from elsewhere: never more of them than a limit, and nothing that JSON leaves open."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from dreamfleet.core.text.formatting import size_text

MB = 1 << 20
BLOCK_BYTES = MB


class TooLarge(ValueError):
    """A file, or what it decompresses to, is larger than its reader allows."""


def read_bounded(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    return expect_within(data, most_bytes)


def expect_within(data: bytes, most_bytes: int) -> bytes:
    if len(data) > most_bytes:
        raise TooLarge(f"it has more than {size_text(most_bytes)}, the most that is read")
    return data


def read_json(path: Path, most_bytes: int) -> Any:
    """Raises ValueError for all that is not JSON of this size, and OSError."""
    return parse_json(read_bounded(path, most_bytes))


def parse_json(data: bytes) -> Any:
    """Refuses a key that an object has twice and nesting too deep for the parser, both as ValueError."""
    try:
        return json.loads(data, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def gunzip(data: bytes, most_bytes: int) -> bytes:
    """Decompress no more than `most_bytes`, however little the compressed bytes are; ValueError if they are damaged."""
    blocks, size = [], 0
    try:
        while data:
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                block = member.decompress(data, BLOCK_BYTES)
                data = member.unconsumed_tail
                if not block and not data and not member.eof:
                    raise ValueError("it is cut short")
                blocks.append(block)
                size += len(block)
                if size > most_bytes:
                    raise TooLarge(f"it decompresses to more than {size_text(most_bytes)}, the most that is read")
            data = member.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    return b"".join(blocks)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"it has {next(key for key in names if names.count(key) > 1)[:80]!r} twice")
    return found
