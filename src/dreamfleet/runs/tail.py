"""Read the last rows of a file of JSON lines without reading the whole file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

TAIL_BYTES = 1 << 16


def tail_rows(path: Path, tail_bytes: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """Return the rows that start in the last `tail_bytes`. Skip invalid lines, such as one cut off by a crash.

    Return no rows if the file does not exist.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - tail_bytes)
            file.seek(start)
            lines = file.read(tail_bytes).split(b"\n")
    except OSError:
        return []
    return parse_rows(lines[1:] if start else lines)


def parse_rows(lines: list[bytes]) -> list[dict[str, Any]]:
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
