"""The last rows of a file of JSON lines, read from its end: such a file may be of any length."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

TAIL_BYTES = 1 << 16


def tail_rows(path: Path, tail_bytes: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """The rows that begin in the last `tail_bytes`. What is no JSON object, such as a line cut by a crash, is left out.

    A file that is not there has no rows.
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
